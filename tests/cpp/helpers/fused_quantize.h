// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An op's FP8 copies of its result against a separate quantization of that result.
#pragma once

#include <gtest/gtest.h>
#include <transformer_engine/cast.h>

#include "helpers/block_scaled.h"
#include "helpers/matrix.h"

namespace transformer_engine::testing {

// Everything a QuantizedOutput can ask for.
struct QuantizedBuffers {
  Matrix data;
  Matrix data_transpose;
  float scale = 3.0F;
  float scale_inv = -1.0F;
  float amax = 0.125F;  // below any amax of the tests: shows that it is accumulated

  QuantizedBuffers(DType format, int64_t rows, int64_t cols)
      : data(format, rows, cols), data_transpose(format, cols, rows) {}

  QuantizedOutput output(bool with_data, bool with_transpose) {
    QuantizedOutput wanted;
    if (with_data) {
      wanted.data = data.view();
    }
    if (with_transpose) {
      wanted.data_transpose = data_transpose.view();
    }
    wanted.scale = &scale;
    wanted.scale_inv = &scale_inv;
    wanted.amax = &amax;
    return wanted;
  }
};

// Runs `op(output view, quantized)` for every choice of row-wise and transposed copy, with and
// without the high-precision output, and compares with quantize() of the plain result.
template <typename Op>
void expect_fused_equals_separate(DType value_dtype, int64_t rows, int64_t cols, const Op& op) {
  Matrix plain(value_dtype, rows, cols);
  op(plain.view(), QuantizedOutput{});
  for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    QuantizedBuffers expected(format, rows, cols);
    quantize({.input = plain.view(), .output = expected.output(true, true), .noop = nullptr}, {});
    for (int choice = 0; choice < 8; ++choice) {
      const bool with_data = (choice & 1) != 0;
      const bool with_transpose = (choice & 2) != 0;
      const bool with_output = (choice & 4) != 0;
      SCOPED_TRACE(::testing::Message()
                   << dtype_name(format) << " data " << with_data << " transpose " << with_transpose
                   << " output " << with_output);
      QuantizedBuffers got(format, rows, cols);
      Matrix output(value_dtype, rows, cols);
      TensorView view = output.view();
      view.data = with_output ? view.data : nullptr;
      op(view, got.output(with_data, with_transpose));
      if (with_output) {
        EXPECT_TRUE(same_bytes(output, plain));
      }
      if (with_data) {
        EXPECT_TRUE(same_bytes(got.data, expected.data));
      }
      if (with_transpose) {
        EXPECT_TRUE(same_bytes(got.data_transpose, expected.data_transpose));
      }
      EXPECT_EQ(got.amax, expected.amax);
      EXPECT_EQ(got.scale_inv, expected.scale_inv);
    }
  }
}

// The formats with one scale per block, and both copies of one of them.
struct BlockPlan {
  const char* name;
  BlockKind rowwise;
  BlockKind columnwise;
  bool has_square_tiles;

  bool is_mxfp8() const { return rowwise == BlockKind::kMxRows; }
};
inline constexpr BlockPlan kBlockPlans[] = {
    {"FP8 rows", BlockKind::kFp8Rows, BlockKind::kFp8Rows, false},
    {"FP8 tiles", BlockKind::kFp8Tiles, BlockKind::kFp8Tiles, false},
    {"MXFP8", BlockKind::kMxRows, BlockKind::kMxColumns, false},
    {"MXFP8 tiles", BlockKind::kMxRows, BlockKind::kMxColumns, true}};

struct BlockCopies {
  BlockCopy rowwise;
  BlockCopy columnwise;

  BlockCopies(const BlockPlan& plan, int64_t rows, int64_t cols)
      : rowwise(plan.rowwise, DType::kFloat8E4M3, rows, cols, true),
        columnwise(plan.columnwise, DType::kFloat8E4M3, plan.is_mxfp8() ? rows : cols,
                   plan.is_mxfp8() ? cols : rows, true) {}

  QuantizedOutput output(const BlockPlan& plan, bool with_rowwise, bool with_columnwise) {
    QuantizedOutput wanted;
    wanted.blocks.rowwise = with_rowwise ? rowwise.view() : BlockScaledMatrix{};
    wanted.blocks.columnwise = with_columnwise ? columnwise.view() : BlockScaledMatrix{};
    wanted.blocks.epsilon = plan.is_mxfp8() ? 0.0F : 0.01F;
    wanted.blocks.has_square_tiles = plan.has_square_tiles;
    return wanted;
  }
};

inline BlockCopies quantize_separately(const BlockPlan& plan, Matrix& values) {
  BlockCopies copies(plan, values.rows(), values.cols());
  const QuantizedOutput wanted = copies.output(plan, true, true);
  if (plan.is_mxfp8()) {
    quantize_mxfp8({.input = values.view(),
                    .rowwise = wanted.blocks.rowwise,
                    .columnwise = wanted.blocks.columnwise,
                    .has_square_tiles = plan.has_square_tiles},
                   {});
  } else {
    quantize_fp8_blocks({.input = values.view(),
                         .rowwise = wanted.blocks.rowwise,
                         .columnwise = wanted.blocks.columnwise,
                         .epsilon = wanted.blocks.epsilon},
                        {});
  }
  return copies;
}

// The same as expect_fused_equals_separate for every format with one scale per block.
template <typename Op>
void expect_fused_blocks_equal_separate(DType value_dtype, int64_t rows, int64_t cols,
                                        const Op& op) {
  Matrix plain(value_dtype, rows, cols);
  op(plain.view(), QuantizedOutput{});
  for (const BlockPlan& plan : kBlockPlans) {
    BlockCopies expected = quantize_separately(plan, plain);
    for (int choice = 1; choice < 8; ++choice) {
      const bool with_rowwise = (choice & 1) != 0;
      const bool with_columnwise = (choice & 2) != 0;
      const bool with_output = (choice & 4) != 0;
      SCOPED_TRACE(::testing::Message()
                   << plan.name << " rowwise " << with_rowwise << " columnwise " << with_columnwise
                   << " output " << with_output);
      BlockCopies got(plan, rows, cols);
      Matrix output(value_dtype, rows, cols);
      TensorView view = output.view();
      view.data = with_output ? view.data : nullptr;
      op(view, got.output(plan, with_rowwise, with_columnwise));
      EXPECT_TRUE(!with_output || same_bytes(output, plain));
      EXPECT_TRUE(!with_rowwise || same_copy(got.rowwise, expected.rowwise));
      EXPECT_TRUE(!with_columnwise || same_copy(got.columnwise, expected.columnwise));
    }
  }
}

}  // namespace transformer_engine::testing
