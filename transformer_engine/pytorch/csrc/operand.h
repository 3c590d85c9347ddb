// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a GEMM reads: a high-precision tensor, or up to two quantized copies of one. Plain values;
// steps move them around without asking which format they have.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <transformer_engine/gemm.h>

#include "views.h"

namespace transformer_engine::pytorch {

// How a copy is scaled and stored. The values are part of the protocol between steps and the Python
// tensors (`_native_operand`).
enum class CopyKind : int32_t {
  kPlain = 0,      // high precision
  kTensor = 1,     // FP8 with one FP32 scale
  kFp8Blocks = 2,  // FP8, FP32 scales of 1 x 128 blocks as stored
  kFp8Tiles = 3,   // FP8, FP32 scales of 128 x 128 tiles
  kMxfp8 = 4,      // FP8, E8M0 scales of 32 elements; the columnwise copy is stored as the rowwise
  kNvfp4 = 5,      // E2M1, E4M3 scales of 16 elements as stored, and FP32 amaxes
};

struct CopyFormat {
  enum Flag : int32_t {
    kPowersOfTwo = 1,   // FP32 scales are
    kSquareTiles = 2,   // of kMxfp8, kNvfp4: blocks of a tile share a scale
    kRowScaled = 4,     // of kNvfp4: an amax per row
    kHadamard = 8,      // of kNvfp4: of the transformed input
    kScalesTo256 = 16,  // of kNvfp4: scales are at most 256 instead of 448
  };
  CopyKind kind = CopyKind::kPlain;
  DType dtype = DType::kFloat32;  // of the elements
  int32_t flags = 0;

  bool has(Flag flag) const { return (flags & flag) != 0; }
  bool operator==(const CopyFormat&) const = default;
};

// One copy serves GEMMs along both directions: the values of both copies are the same.
bool serves_both(const CopyFormat& format);

// Logical sizes of a tensor as a matrix: [product of the leading ones, last].
struct MatrixSizes {
  int64_t rows = 0;
  int64_t cols = 0;
};
MatrixSizes matrix_sizes(at::IntArrayRef sizes);

// How a copy of a [rows, cols] matrix is stored.
struct CopyLayout {
  CopyLayout(const CopyFormat& format, bool is_columnwise, const MatrixSizes& sizes);

  bool is_transposed = false;  // the copy is stored [cols, rows]
  int64_t stored_rows = 0;     // in elements
  int64_t stored_cols = 0;     // a copy of a transformed input has whole groups of 16
  int64_t data_row_bytes = 0;
  c10::SmallVector<int64_t, 2> scale_sizes;  // with the format's padding
  bool has_padded_scales = false;
  int64_t row_scales = 0;  // scales that the matrix's rows have, without padding
  int row_scales_dim = 0;  // the dimension of scale_sizes they lie along
  int64_t shard_rows = 1;  // parts of so many rows, or multiples, are copies of their own
  int64_t amax_numel = 0;  // 0: none
  BlockScales scales;      // without pointers

  int64_t data_numel() const { return stored_rows * data_row_bytes; }
  // Rows and columns of the matrix that share a scale.
  int64_t rows_per_scale() const { return is_transposed ? scales.block_cols : scales.block_rows; }
  int64_t cols_per_scale() const { return is_transposed ? scales.block_rows : scales.block_cols; }
};

// dtype of the scales of a format as torch stores them: float32, or uint8 for E8M0 and E4M3.
at::ScalarType scale_type(const CopyFormat& format);

struct OperandCopy {
  at::Tensor data;       // high precision, or uint8
  at::Tensor scale_inv;  // undefined for high precision
  at::Tensor amax;       // FP32; kNvfp4 only
  CopyFormat format;

  bool is_defined() const { return data.defined(); }
};

struct Operand {
  OperandCopy rowwise;     // for GEMMs that contract along the columns
  OperandCopy columnwise;  // for those that contract along the rows; where one copy serves both
                           // (high precision, one scale per tensor or square tile), it is rowwise
  MatrixSizes sizes;

  static Operand high_precision(at::Tensor tensor);
  bool is_defined() const { return rowwise.is_defined() || columnwise.is_defined(); }
  bool is_quantized() const {
    return columnwise.is_defined() || rowwise.format.kind != CopyKind::kPlain;
  }
  // The tensor of a high-precision operand.
  const at::Tensor& plain() const { return rowwise.data; }
  // Any of its tensors: for its device.
  const at::Tensor& anchor() const { return is_rowwise_held() ? rowwise.data : columnwise.data; }
  bool is_rowwise_held() const { return rowwise.is_defined(); }

  // Whether GEMMs that contract along the rows can read it.
  bool can_contract_rows() const;
  bool can_contract_columns() const;
  // This operand without its columnwise copy, if it has a rowwise one.
  Operand rowwise_alone() const;
  // This operand without what products that contract along the rows (those of a backward) do not
  // read.
  Operand for_row_contraction() const;

  // Converts high-precision copies of another type: products take one.
  void convert_plain_copies(at::ScalarType dtype);

  // `contracts_rows` false: op(X) = X [rows, cols]; true: op(X) = X^T [cols, rows]. RuntimeError
  // when the copy for that is missing.
  GemmOperand gemm_operand(bool contracts_rows) const;
};

// The core's view of one copy of a matrix.
BlockScaledMatrix block_scaled_view(const OperandCopy& copy, bool is_columnwise,
                                    const MatrixSizes& sizes);

// The matrix an operand stands for, [rows, cols] of `dtype`, from its rowwise copy if it has one.
at::Tensor dequantize(const Operand& operand, at::ScalarType dtype);

// Two operands of a GEMM that contracts along both's rows must both be transformed, or neither.
void check_same_transform(const Operand& a, const Operand& b);

}  // namespace transformer_engine::pytorch
