// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Argument checks shared by the ops: run before any memory is touched.
#pragma once

#include <transformer_engine/error.h>
#include <transformer_engine/types.h>

namespace transformer_engine {

inline void check_shape(const char* op, const char* name, const TensorView& view, int64_t rows,
                        int64_t cols) {
  TE_CHECK(view.rows == rows && view.cols == cols, op, ": ", name, " has shape [", view.rows, ", ",
           view.cols, "]; [", rows, ", ", cols, "] is required.");
}

inline void check_extent(const char* op, const char* name, const TensorView& view) {
  TE_CHECK(view.rows >= 0 && view.cols >= 0, op, ": ", name, " has shape [", view.rows, ", ",
           view.cols, "]; sizes of 0 or more are required.");
}

inline void check_high_precision(const char* op, const char* name, const TensorView& view) {
  TE_CHECK_TYPE(is_high_precision(view.dtype), op, ": ", name, " has dtype ",
                dtype_name(view.dtype), "; float32, float16 or bfloat16 is required.");
}

inline void check_fp8(const char* op, const char* name, const TensorView& view) {
  TE_CHECK_TYPE(is_fp8(view.dtype), op, ": ", name, " has dtype ", dtype_name(view.dtype),
                "; float8_e4m3 or float8_e5m2 is required.");
}

inline void check_data(const char* op, const char* name, const TensorView& view) {
  TE_CHECK(view.data != nullptr || view.numel() == 0, op, ": ", name, " has no data for shape [",
           view.rows, ", ", view.cols, "]; a pointer to that many elements is required.");
}

// A high-precision matrix that must be there, of any shape or of one shape.
inline void check_operand(const char* op, const char* name, const TensorView& view) {
  check_extent(op, name, view);
  check_high_precision(op, name, view);
  check_data(op, name, view);
}
inline void check_operand(const char* op, const char* name, const TensorView& view, int64_t rows,
                          int64_t cols) {
  check_shape(op, name, view, rows, cols);
  check_high_precision(op, name, view);
  check_data(op, name, view);
}

// An optional operand: checked when there is one.
inline void check_optional_operand(const char* op, const char* name, const TensorView& view,
                                   int64_t rows, int64_t cols) {
  if (view.is_wanted()) {
    check_operand(op, name, view, rows, cols);
  }
}

// Scales of a wanted matrix: their type, block and memory.
struct BlockRule {
  DType scale_dtype;
  int64_t block_rows;
  int64_t block_cols;
};

inline void check_scale_strides(const char* op, const char* name, const BlockScaledMatrix& matrix) {
  const BlockScales& scales = matrix.scales;
  const bool has_blocks = matrix.data.numel() > 0;
  const bool needs_row_stride = has_blocks && matrix.data.rows > scales.block_rows;
  const bool needs_col_stride = has_blocks && matrix.data.cols > scales.block_cols;
  TE_CHECK(
      (!needs_row_stride || scales.row_stride > 0) && (!needs_col_stride || scales.col_stride > 0),
      op, ": ", name, " scales have strides ", scales.row_stride, " and ", scales.col_stride,
      "; strides above 0 are required where there is more than one block.");
  TE_CHECK(scales.data != nullptr || matrix.data.numel() == 0, op, ": ", name,
           " scales have no data for shape [", matrix.data.rows, ", ", matrix.data.cols,
           "]; a pointer to one scale per block is required.");
}

inline void check_block_scales(const char* op, const char* name, const BlockScaledMatrix& matrix,
                               const BlockRule& rule) {
  const BlockScales& scales = matrix.scales;
  TE_CHECK_TYPE(scales.dtype == rule.scale_dtype, op, ": ", name, " scales have dtype ",
                dtype_name(scales.dtype), "; ", dtype_name(rule.scale_dtype), " is required.");
  TE_CHECK(scales.block_rows == rule.block_rows && scales.block_cols == rule.block_cols, op, ": ",
           name, " has blocks of ", scales.block_rows, " x ", scales.block_cols, "; ",
           rule.block_rows, " x ", rule.block_cols, " is required.");
  check_scale_strides(op, name, matrix);
}

// A copy of FP8 codes, where it is wanted.
inline void check_block_copy(const char* op, const char* name, const BlockScaledMatrix& copy,
                             int64_t rows, int64_t cols, const BlockRule& rule) {
  if (!copy.is_wanted()) {
    return;
  }
  check_fp8(op, name, copy.data);
  check_shape(op, name, copy.data, rows, cols);
  check_data(op, name, copy.data);
  check_block_scales(op, name, copy, rule);
}

// The copies with one scale per block of a [rows, cols] matrix: FP8 blocks (FP32 scales) or MXFP8.
inline void check_block_quantized_output(const char* op, DType scale_dtype,
                                         const BlockQuantizedOutput& output, int64_t rows,
                                         int64_t cols) {
  constexpr int64_t kFp8Block = 128;
  constexpr int64_t kMxBlock = 32;
  constexpr char kRowwise[] = "quantized rowwise";
  constexpr char kColumnwise[] = "quantized columnwise";
  const BlockScaledMatrix& rowwise = output.rowwise;
  const BlockScaledMatrix& columnwise = output.columnwise;
  TE_CHECK_TYPE(!rowwise.is_wanted() || !columnwise.is_wanted() ||
                    rowwise.data.dtype == columnwise.data.dtype,
                op, ": quantized rowwise has dtype ", dtype_name(rowwise.data.dtype),
                " and columnwise ", dtype_name(columnwise.data.dtype), "; they must be equal.");
  if (scale_dtype == DType::kFloat8E8M0) {
    check_block_copy(op, kRowwise, rowwise, rows, cols, {scale_dtype, 1, kMxBlock});
    check_block_copy(op, kColumnwise, columnwise, rows, cols, {scale_dtype, kMxBlock, 1});
    return;
  }
  const auto fp8_rule = [&](const BlockScaledMatrix& copy) {
    return BlockRule{DType::kFloat32, copy.scales.block_rows != 1 ? kFp8Block : 1, kFp8Block};
  };
  check_block_copy(op, kRowwise, rowwise, rows, cols, fp8_rule(rowwise));
  check_block_copy(op, kColumnwise, columnwise, cols, rows, fp8_rule(columnwise));
  TE_CHECK(output.epsilon >= 0.0F && output.epsilon < __builtin_inff(), op, ": epsilon is ",
           output.epsilon, "; a finite number of 0 or more is required.");
}

// Shapes and dtypes of the optional FP8 copies of a [rows, cols] result.
inline void check_quantized_output(const char* op, const QuantizedOutput& output, int64_t rows,
                                   int64_t cols) {
  if (output.blocks.is_wanted()) {
    TE_CHECK(
        !output.is_per_tensor() && output.scale_inv == nullptr, op,
        ": quantized copies with one scale and with one per block are both wanted; one kind is "
        "required.");
    const BlockScaledMatrix& any =
        output.blocks.rowwise.is_wanted() ? output.blocks.rowwise : output.blocks.columnwise;
    check_block_quantized_output(op, any.scales.dtype, output.blocks, rows, cols);
  }
  if (output.data.is_wanted()) {
    check_fp8(op, "quantized data", output.data);
    check_shape(op, "quantized data", output.data, rows, cols);
  }
  if (output.data_transpose.is_wanted()) {
    check_fp8(op, "quantized data_transpose", output.data_transpose);
    check_shape(op, "quantized data_transpose", output.data_transpose, cols, rows);
  }
  TE_CHECK_TYPE(!output.data.is_wanted() || !output.data_transpose.is_wanted() ||
                    output.data.dtype == output.data_transpose.dtype,
                op, ": quantized data has dtype ", dtype_name(output.data.dtype),
                " and data_transpose ", dtype_name(output.data_transpose.dtype),
                "; they must be equal.");
}

// A high-precision result of one shape, whose data may be null where only its FP8 copy is wanted.
inline void check_result(const char* op, const char* name, const TensorView& view,
                         const QuantizedOutput& quantized, int64_t rows, int64_t cols) {
  check_shape(op, name, view, rows, cols);
  check_high_precision(op, name, view);
  check_quantized_output(op, quantized, rows, cols);
  TE_CHECK(view.data != nullptr || view.numel() == 0 || quantized.is_wanted(), op, ": ", name,
           " has no data and no quantized copy is wanted; at least one is required.");
}

}  // namespace transformer_engine
