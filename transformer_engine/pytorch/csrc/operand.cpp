// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "operand.h"

#include <transformer_engine/block_scaling.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/error.h>

#include <algorithm>

#include "allocate.h"

namespace transformer_engine::pytorch {

namespace {

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

constexpr int64_t kFp8Block = 128;
constexpr int64_t kMxfp8Block = 32;
constexpr int64_t kNvfp4Block = 16;
// Paddings of the scales that hardware GEMMs read.
constexpr int64_t kScaleRows = 128;
constexpr int64_t kScaleCols = 4;

bool is_stored_transposed(CopyKind kind, bool is_columnwise) {
  return is_columnwise && kind != CopyKind::kPlain && kind != CopyKind::kMxfp8;
}

}  // namespace

bool serves_both(const CopyFormat& format) {
  return format.kind == CopyKind::kPlain || format.kind == CopyKind::kTensor ||
         format.kind == CopyKind::kFp8Tiles ||
         (format.has(CopyFormat::kSquareTiles) && !format.has(CopyFormat::kHadamard));
}

MatrixSizes matrix_sizes(at::IntArrayRef sizes) {
  MatrixSizes result{.rows = 1, .cols = sizes.empty() ? 1 : sizes.back()};
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    result.rows *= sizes[i];
  }
  return result;
}

at::ScalarType scale_type(const CopyFormat& format) {
  return format.kind == CopyKind::kMxfp8 || format.kind == CopyKind::kNvfp4 ? at::kByte
                                                                            : at::kFloat;
}

CopyLayout::CopyLayout(const CopyFormat& format, bool is_columnwise, const MatrixSizes& sizes)
    : is_transposed(is_stored_transposed(format.kind, is_columnwise)),
      stored_rows(is_transposed ? sizes.cols : sizes.rows),
      stored_cols(is_transposed ? sizes.rows : sizes.cols),
      data_row_bytes(stored_cols) {
  scales.are_powers_of_two = format.has(CopyFormat::kPowersOfTwo);
  switch (format.kind) {
    case CopyKind::kPlain:
      break;
    case CopyKind::kTensor:
      scale_sizes = {1};
      break;
    case CopyKind::kFp8Blocks: {
      const int64_t stride = round_up(stored_rows, kScaleCols);
      scale_sizes = {ceil_divide(stored_cols, kFp8Block), stride};
      has_padded_scales = stride != stored_rows;
      scales.block_cols = kFp8Block;
      scales.row_stride = 1;
      scales.col_stride = stride;
      break;
    }
    case CopyKind::kFp8Tiles: {
      const int64_t blocks = ceil_divide(stored_cols, kFp8Block);
      scale_sizes = {ceil_divide(stored_rows, kFp8Block), round_up(blocks, kScaleCols)};
      has_padded_scales = scale_sizes[1] != blocks;
      scales.block_rows = scales.block_cols = kFp8Block;
      scales.row_stride = std::max<int64_t>(scale_sizes[1], 1);
      scales.col_stride = 1;
      break;
    }
    case CopyKind::kMxfp8: {
      const int64_t block_rows = is_columnwise ? kMxfp8Block : 1;
      const int64_t block_cols = is_columnwise ? 1 : kMxfp8Block;
      const int64_t down = ceil_divide(stored_rows, block_rows);
      const int64_t across = ceil_divide(stored_cols, block_cols);
      scale_sizes = {round_up(down, is_columnwise ? kScaleCols : kScaleRows),
                     round_up(across, is_columnwise ? kScaleRows : kScaleCols)};
      has_padded_scales = scale_sizes[0] != down || scale_sizes[1] != across;
      scales.dtype = DType::kFloat8E8M0;
      scales.block_rows = block_rows;
      scales.block_cols = block_cols;
      scales.row_stride = std::max<int64_t>(scale_sizes[1], 1);
      scales.col_stride = 1;
      break;
    }
    case CopyKind::kNvfp4: {
      const int64_t blocks = ceil_divide(stored_cols, kNvfp4Block);
      if (format.has(CopyFormat::kHadamard)) {
        stored_cols = blocks * kNvfp4Block;
      }
      data_row_bytes = row_size_bytes(format.dtype, stored_cols);
      scale_sizes = {round_up(stored_rows, kScaleRows), round_up(blocks, kScaleCols)};
      has_padded_scales = scale_sizes[0] != stored_rows || scale_sizes[1] != blocks;
      amax_numel = format.has(CopyFormat::kRowScaled) ? stored_rows : 1;
      scales.dtype = DType::kFloat8E4M3;
      scales.block_cols = kNvfp4Block;
      scales.row_stride = std::max<int64_t>(scale_sizes[1], 1);
      scales.col_stride = 1;
      scales.is_row_scaled = format.has(CopyFormat::kRowScaled);
      scales.e4m3_max = format.has(CopyFormat::kScalesTo256) ? 256.0F : 448.0F;
      break;
    }
  }
  row_scales = ceil_divide(sizes.rows, rows_per_scale());
  const bool has_tiles = format.has(CopyFormat::kSquareTiles);
  shard_rows = std::max(rows_per_scale(), has_tiles ? cols_per_scale() : 1);
  // Scales of 1 x 128 blocks are stored transposed to the data.
  row_scales_dim = is_transposed != (format.kind == CopyKind::kFp8Blocks) ? 1 : 0;
}

BlockScaledMatrix block_scaled_view(const OperandCopy& copy, bool is_columnwise,
                                    const MatrixSizes& sizes) {
  BlockScaledMatrix view;
  if (!copy.is_defined()) {
    return view;
  }
  const CopyLayout layout(copy.format, is_columnwise, sizes);
  view.data.data = copy.data.data_ptr();
  view.data.dtype = copy.format.dtype;
  view.data.rows = layout.stored_rows;
  view.data.cols = layout.stored_cols;
  // An empty matrix has no memory, and is wanted all the same.
  view.data.framework_tensor = &copy.data;
  view.scales = layout.scales;
  view.scales.data = copy.scale_inv.data_ptr();
  view.scales.amax = float_data(copy.amax, "amax");
  return view;
}

Operand Operand::high_precision(at::Tensor tensor) {
  Operand operand;
  if (tensor.defined()) {
    operand.sizes = matrix_sizes(tensor.sizes());
    operand.rowwise.format.dtype = dtype_of(tensor.scalar_type());
    operand.rowwise.data = std::move(tensor);
  }
  return operand;
}

bool Operand::can_contract_rows() const {
  return columnwise.is_defined() || (rowwise.is_defined() && serves_both(rowwise.format));
}

bool Operand::can_contract_columns() const {
  return rowwise.is_defined() || (columnwise.is_defined() && serves_both(columnwise.format));
}

Operand Operand::rowwise_alone() const {
  Operand result = *this;
  if (rowwise.is_defined()) {
    result.columnwise = {};
  }
  return result;
}

Operand Operand::for_row_contraction() const {
  Operand result = *this;
  if (columnwise.is_defined()) {
    result.rowwise = {};
  }
  return result;
}

void Operand::convert_plain_copies(at::ScalarType dtype) {
  for (OperandCopy* const copy : {&rowwise, &columnwise}) {
    if (copy->is_defined() && copy->format.kind == CopyKind::kPlain) {
      copy->data = copy->data.to(dtype);
      copy->format.dtype = dtype_of(dtype);
    }
  }
}

GemmOperand Operand::gemm_operand(bool contracts_rows) const {
  bool is_columnwise = contracts_rows && columnwise.is_defined();
  if (!contracts_rows && !rowwise.is_defined() && columnwise.is_defined() &&
      serves_both(columnwise.format)) {
    is_columnwise = true;
  }
  const OperandCopy& copy = is_columnwise ? columnwise : rowwise;
  TE_CHECK_AS(RuntimeError,
              copy.is_defined() && (is_columnwise || !contracts_rows || serves_both(copy.format)),
              "gemm: an operand has no ", contracts_rows ? "columnwise" : "rowwise",
              " copy, which this product reads. Quantize it with that usage.");
  GemmOperand operand;
  if (copy.format.kind == CopyKind::kPlain || copy.format.kind == CopyKind::kTensor) {
    operand.matrix = matrix_view(copy.data, copy.format.dtype);
    operand.is_transposed = contracts_rows != is_stored_transposed(copy.format.kind, is_columnwise);
    if (copy.format.kind == CopyKind::kTensor) {
      operand.matrix.framework_tensor = nullptr;  // bytes mean nothing to the framework's GEMM
      operand.scale_inv = static_cast<const float*>(copy.scale_inv.data_ptr());
    }
    return operand;
  }
  const BlockScaledMatrix view = block_scaled_view(copy, is_columnwise, sizes);
  operand.matrix = view.data;
  operand.matrix.framework_tensor = nullptr;
  operand.scales = view.scales;
  operand.is_transposed = contracts_rows != is_stored_transposed(copy.format.kind, is_columnwise);
  return operand;
}

at::Tensor dequantize(const Operand& operand, at::ScalarType dtype) {
  const bool is_columnwise = !operand.rowwise.is_defined();
  const OperandCopy& copy = is_columnwise ? operand.columnwise : operand.rowwise;
  TE_CHECK_AS(NotImplementedError, !copy.format.has(CopyFormat::kHadamard),
              "dequantize: only the Hadamard-transformed columnwise copy is there; the rowwise one "
              "is required. Keep rowwise usage.");
  const MatrixSizes& sizes = operand.sizes;
  if (copy.format.kind == CopyKind::kPlain) {
    return copy.data.to(dtype);
  }
  const bool is_transposed = is_stored_transposed(copy.format.kind, is_columnwise);
  const at::Tensor values = is_transposed ? new_tensor({sizes.cols, sizes.rows}, dtype, copy.data)
                                          : new_tensor({sizes.rows, sizes.cols}, dtype, copy.data);
  const Context context = context_for(copy.data);
  if (copy.format.kind == CopyKind::kTensor) {
    DequantizeArgs args;
    args.input = matrix_view(values, copy.format.dtype);
    args.input.data = copy.data.data_ptr();
    args.scale_inv = float_data(copy.scale_inv, "dequantize: scale_inv");
    args.output = matrix_view(values);
    transformer_engine::dequantize(args, context);
  } else {
    dequantize_blocks(
        {.input = block_scaled_view(copy, is_columnwise, sizes), .output = matrix_view(values)},
        context);
  }
  return is_transposed ? values.t().contiguous() : values;
}

void check_same_transform(const Operand& a, const Operand& b) {
  const bool a_is_transformed = a.columnwise.format.has(CopyFormat::kHadamard);
  const bool b_is_transformed = b.columnwise.format.has(CopyFormat::kHadamard);
  TE_CHECK_AS(RuntimeError, a_is_transformed == b_is_transformed,
              "gemm: one operand's columnwise copy is Hadamard-transformed and the other's is not; "
              "both or neither is required. Use with_rht alike for input and grad_output.");
}

}  // namespace transformer_engine::pytorch
