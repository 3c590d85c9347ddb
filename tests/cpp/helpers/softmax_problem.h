// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Problems of the masked softmax, and what any implementation must give for them: the FP64 formula
// with derived bounds.
#pragma once

#include <transformer_engine/softmax.h>

#include <algorithm>
#include <vector>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

inline constexpr SumOrder kCpuSoftmaxOrder{.lanes = 64};

struct SoftmaxShape {
  int64_t batch, heads, queries, keys;
};
struct SoftmaxProblem {
  SoftmaxShape shape;
  SoftmaxMask mask_kind;
  Matrix input;
  std::vector<uint8_t> mask;
  int64_t mask_batch;
  float scale = 0.7F;
  SumOrder order = kCpuSoftmaxOrder;  // of the sums over a row of the function under test

  SoftmaxProblem(SoftmaxShape problem_shape, SoftmaxMask kind, DType dtype, int64_t batch_of_mask)
      : shape(problem_shape),
        mask_kind(kind),
        input(dtype, shape.batch * shape.heads * shape.queries, shape.keys),
        mask(batch_of_mask * shape.queries * shape.keys),
        mask_batch(batch_of_mask) {
    fill_normal(input, 1, 3.0F, 4.0F);
    std::mt19937 generator(2);
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = static_cast<uint8_t>(generator() % 3 == 0 ? 1 + generator() % 255 : 0);
    }
    // The first query sees nothing.
    std::fill_n(mask.begin(), shape.queries > 0 ? shape.keys : 0, uint8_t{1});
  }

  bool is_visible(int64_t row, int64_t key) const {
    const int64_t query = row % shape.queries;
    const int64_t sample = mask_batch == 1 ? 0 : row / shape.queries / shape.heads;
    switch (mask_kind) {
      case SoftmaxMask::kNone:
        return true;
      case SoftmaxMask::kPadding:
        return mask[(sample * shape.queries + query) * shape.keys + key] == 0;
      case SoftmaxMask::kCausal:
        return key <= query;
      case SoftmaxMask::kCausalAligned:
        return key <= query + shape.keys - shape.queries;
    }
    return false;
  }

  SoftmaxForwardArgs args(Matrix& output) {
    return {.mask_kind = mask_kind,
            .input = input.view(),
            .output = output.view(),
            .scale = scale,
            .batch = shape.batch,
            .heads = shape.heads,
            .queries = shape.queries,
            .mask = mask.data(),
            .mask_batch = mask_batch};
  }

  double score(int64_t row, int64_t key) {
    return static_cast<double>(scale) * input.get(row * shape.keys + key);
  }

  // e^(score - largest) / sum. The exponent, rounded once, is off by its own rounding, which exp
  // makes relative; so is the largest, but that cancels in the quotient up to the sum's terms of
  // their own rounding. exp, the sum, the reciprocal and the product follow.
  void append_row(int64_t row, std::vector<Expected>* expected) {
    double largest = -HUGE_VAL;
    for (int64_t key = 0; key < shape.keys; ++key) {
      largest = is_visible(row, key) ? std::max(largest, score(row, key)) : largest;
    }
    double sum = 0.0;
    double sum_error = 0.0;
    for (int64_t key = 0; key < shape.keys; ++key) {
      const double e = is_visible(row, key) ? std::exp(score(row, key) - largest) : 0.0;
      sum += e;
      sum_error += is_visible(row, key) ? e * std::abs(score(row, key) - largest) : 0.0;
    }
    const double rounding =
        order.roundoff(shape.keys, 6) + 2 * kFloatRoundoff * (sum > 0.0 ? sum_error / sum : 0.0);
    for (int64_t key = 0; key < shape.keys; ++key) {
      const double distance = is_visible(row, key) ? largest - score(row, key) : 0.0;
      const double y = is_visible(row, key) ? std::exp(-distance) / sum : 0.0;
      expected->push_back({y, y * (rounding + 2 * kFloatRoundoff * distance) +
                                  (y > 0.0 ? half_spacing(DType::kFloat32) : 0.0)});
    }
  }
};

using SoftmaxForwardFunction = void (*)(const SoftmaxForwardArgs&, const Context&);
using SoftmaxBackwardFunction = void (*)(const SoftmaxBackwardArgs&, const Context&);

inline void check_softmax_forward(SoftmaxProblem& problem, DType output_dtype,
                                  SoftmaxForwardFunction run) {
  Matrix output(output_dtype, problem.input.rows(), problem.input.cols());
  run(problem.args(output), {.num_threads = 2});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < problem.input.rows(); ++row) {
    problem.append_row(row, &expected);
  }
  EXPECT_TRUE(all_close(output, expected));
  for (int64_t i = 0; i < output.numel(); ++i) {
    if (!problem.is_visible(i / problem.shape.keys, i % problem.shape.keys)) {
      EXPECT_EQ(output.get(i), 0.0) << "hidden element " << i;
    }
  }
}

// grad_input of one row, and its bound: the sum of products first, then a difference and two
// products.
inline void append_softmax_gradient(Matrix& grad_output, Matrix& output, int64_t row, double scale,
                                    std::vector<Expected>* expected,
                                    const SumOrder& order = kCpuSoftmaxOrder) {
  const int64_t keys = output.cols();
  double mean = 0.0;
  double magnitude = 0.0;
  for (int64_t i = row * keys; i < (row + 1) * keys; ++i) {
    mean += grad_output.get(i) * output.get(i);
    magnitude += std::abs(grad_output.get(i) * output.get(i));
  }
  for (int64_t i = row * keys; i < (row + 1) * keys; ++i) {
    const double factor = std::abs(scale * output.get(i));
    expected->push_back(
        {scale * (grad_output.get(i) - mean) * output.get(i),
         factor * (order.roundoff(keys, 2) * magnitude +
                   4 * kFloatRoundoff * (std::abs(grad_output.get(i)) + std::abs(mean))) +
             4 * half_spacing(DType::kFloat32)});
  }
}

inline void check_softmax_backward(int64_t rows, int64_t keys, DType output_dtype, DType grad_dtype,
                                   DType grad_input_dtype, SoftmaxBackwardFunction run,
                                   const SumOrder& order = kCpuSoftmaxOrder) {
  SoftmaxProblem problem({1, 1, rows, keys}, SoftmaxMask::kCausalAligned, DType::kFloat32, 1);
  Matrix output(output_dtype, rows, keys), grad_output(grad_dtype, rows, keys),
      grad_input(grad_input_dtype, rows, keys);
  softmax_forward(problem.args(output), {});
  fill_normal(grad_output, 5);
  run({.grad_output = grad_output.view(),
       .output = output.view(),
       .grad_input = grad_input.view(),
       .scale = -0.7F},
      {.num_threads = 2});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < rows; ++row) {
    append_softmax_gradient(grad_output, output, row, -0.7F, &expected, order);
  }
  EXPECT_TRUE(all_close(grad_input, expected));
}

}  // namespace transformer_engine::testing
