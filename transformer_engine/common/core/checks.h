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

// Shapes and dtypes of the optional FP8 copies of a [rows, cols] result.
inline void check_quantized_output(const char* op, const QuantizedOutput& output, int64_t rows,
                                   int64_t cols) {
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

}  // namespace transformer_engine
