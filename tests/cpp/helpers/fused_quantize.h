// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An op's FP8 copy of its result against a separate quantization of that result.
#pragma once

#include <gtest/gtest.h>
#include <transformer_engine/cast.h>

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

}  // namespace transformer_engine::testing
