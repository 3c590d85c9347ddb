// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Problems of cross entropy, and what the three ops must give for them: the FP64 formula with
// derived bounds.
#pragma once

#include <transformer_engine/cross_entropy.h>

#include <algorithm>
#include <vector>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

struct CrossEntropyShape {
  int64_t rows, columns;  // of each rank
  int ranks = 1;
};

// The ops under test.
struct CrossEntropyOps {
  void (*statistics)(const CrossEntropyStatisticsArgs&, const Context&);
  void (*loss)(const CrossEntropyLossArgs&, const Context&);
  void (*backward)(const CrossEntropyBackwardArgs&, const Context&);
  SumOrder order;     // of a row's sums
  int rescalings_of;  // logits between two changes of what a partial sum is relative to
};

class CrossEntropyProblem {
 public:
  static constexpr int64_t kIgnored = -7;

  CrossEntropyShape shape;
  DType dtype;
  float label_smoothing = 0.0F;
  bool is_mean = false;
  std::vector<int64_t> ids;
  std::vector<Matrix> inputs;  // of each rank

  CrossEntropyProblem(CrossEntropyShape problem_shape, DType type)
      : shape(problem_shape), dtype(type) {
    std::mt19937 generator(4);
    for (int64_t row = 0; row < shape.rows; ++row) {
      ids.push_back(row % 4 == 2 ? kIgnored : static_cast<int64_t>(generator()) % vocabulary());
    }
    for (int rank = 0; rank < shape.ranks; ++rank) {
      inputs.emplace_back(dtype, shape.rows, shape.columns);
      fill_normal(inputs.back(), static_cast<uint32_t>(rank), 2.0F, 5.0F);
    }
  }

  int64_t vocabulary() const { return shape.columns * shape.ranks; }
  CrossEntropyTargets targets(int rank) const {
    return {.ids = ids.data(),
            .ignored = kIgnored,
            .first = rank * shape.columns,
            .vocabulary = vocabulary()};
  }
  double logit(int64_t row, int64_t id) {
    return inputs[static_cast<size_t>(id / shape.columns)].get(row * shape.columns +
                                                               id % shape.columns);
  }
  int64_t counted() const { return shape.rows - std::count(ids.begin(), ids.end(), kIgnored); }
};

// A row in FP64, with the relative error of its sum of exponentials.
struct CrossEntropyExpected {
  double largest = 0.0, sum = 0.0, total = 0.0;
  double sum_error = 0.0, total_error = 0.0;  // relative, absolute

  CrossEntropyExpected(CrossEntropyProblem& problem, const CrossEntropyOps& ops, int64_t row) {
    const int64_t vocabulary = problem.vocabulary();
    largest = -HUGE_VAL;
    for (int64_t id = 0; id < vocabulary; ++id) {
      largest = std::max(largest, problem.logit(row, id));
    }
    double weighted = 0.0;
    double magnitude = 0.0;
    for (int64_t id = 0; id < vocabulary; ++id) {
      const double x = problem.logit(row, id);
      sum += std::exp(x - largest);
      total += x;
      weighted += std::exp(x - largest) * (largest - x);
      magnitude += std::abs(x);
    }
    // A difference of two FP32 makes its rounding, exponential 2, product 1; each rescaling of a
    // partial sum, and the last of a rank's sum, the same again, of a distance that is at most that
    // of the term itself.
    const int64_t columns = problem.shape.columns;
    const auto rescalings = static_cast<double>(columns / ops.rescalings_of + 3);
    const double terms = ops.order.roundoff(columns, 4) + problem.shape.ranks * kFloatRoundoff;
    sum_error = terms + kFloatRoundoff * rescalings * (4 + weighted / sum);
    total_error = terms * magnitude;
  }
};

inline Expected cross_entropy_loss_of(CrossEntropyProblem& problem, const CrossEntropyOps& ops,
                                      int64_t row) {
  if (problem.ids[static_cast<size_t>(row)] == CrossEntropyProblem::kIgnored) {
    return {};
  }
  const CrossEntropyExpected of_row(problem, ops, row);
  const auto vocabulary = static_cast<double>(problem.vocabulary());
  const double smoothing = problem.label_smoothing;
  const double log_sum = std::log(of_row.sum);
  const double to_target =
      of_row.largest - problem.logit(row, problem.ids[static_cast<size_t>(row)]);
  const double to_mean = of_row.largest - of_row.total / vocabulary;
  return {(1 - smoothing) * (to_target + log_sum) + smoothing * (to_mean + log_sum),
          of_row.sum_error + smoothing * of_row.total_error / vocabulary +
              6 * kFloatRoundoff *
                  (std::abs(to_target) + 2 * std::abs(log_sum) + std::abs(to_mean) +
                   std::abs(of_row.largest))};
}

// Gradient of logit `id` for a row's gradient `given`.
inline Expected cross_entropy_gradient_of(CrossEntropyProblem& problem,
                                          const CrossEntropyExpected& of_row, int64_t row,
                                          int64_t id, double given) {
  const int64_t target = problem.ids[static_cast<size_t>(row)];
  if (target == CrossEntropyProblem::kIgnored) {
    return {};
  }
  const double x = problem.logit(row, id);
  const double share = std::exp(x - of_row.largest) / of_row.sum;
  const double smoothed = problem.label_smoothing / static_cast<double>(problem.vocabulary());
  const double at_target = id == target ? 1.0 - problem.label_smoothing : 0.0;
  const double weight = problem.is_mean ? given / static_cast<double>(problem.counted()) : given;
  const double distance = of_row.largest - x;
  return {weight * (share - smoothed - at_target),
          std::abs(weight) * (share * (of_row.sum_error + kFloatRoundoff * (6 + distance)) +
                              6 * kFloatRoundoff * (share + smoothed + at_target)) +
              4 * half_spacing(DType::kFloat32)};
}

// Runs the three ops and compares all that the last two give.
inline void check_cross_entropy(CrossEntropyProblem& problem, const CrossEntropyOps& ops) {
  const auto& [rows, columns, ranks] = problem.shape;
  Matrix statistics(DType::kFloat32, ranks * rows, kCrossEntropyStatistics);
  for (int rank = 0; rank < ranks; ++rank) {
    TensorView part = statistics.view();
    part.data = statistics.data<float>() + rank * rows * kCrossEntropyStatistics;
    part.rows = rows;
    ops.statistics({.input = problem.inputs[static_cast<size_t>(rank)].view(),
                    .statistics = part,
                    .targets = problem.targets(rank)},
                   {.num_threads = 2});
  }
  Matrix loss(DType::kFloat32, 1, problem.is_mean ? 1 : rows), softmax(DType::kFloat32, rows, 2),
      weight(DType::kFloat32, 1, 1);
  ops.loss({.statistics = statistics.view(),
            .loss = loss.view(),
            .softmax = softmax.view(),
            .weight = weight.view(),
            .targets = problem.targets(0),
            .label_smoothing = problem.label_smoothing,
            .is_mean = problem.is_mean},
           {.num_threads = 2});
  std::vector<Expected> losses;
  Expected mean;
  for (int64_t row = 0; row < rows; ++row) {
    losses.push_back(cross_entropy_loss_of(problem, ops, row));
    mean.value += losses.back().value;
    mean.bound += losses.back().bound +
                  static_cast<double>(rows + 2) * kFloatRoundoff * std::abs(losses.back().value);
  }
  const auto counted = static_cast<double>(std::max<int64_t>(problem.counted(), 1));
  const std::vector<Expected> means = {{mean.value / counted, mean.bound / counted}};
  EXPECT_TRUE(all_close(loss, problem.is_mean ? means : losses));
  Matrix grad_output(DType::kFloat32, 1, problem.is_mean ? 1 : rows);
  fill_normal(grad_output, 8, 1.0F);
  for (int rank = 0; rank < ranks; ++rank) {
    Matrix grad_input(problem.dtype, rows, columns);
    ops.backward({.input = problem.inputs[static_cast<size_t>(rank)].view(),
                  .grad_output = grad_output.view(),
                  .softmax = softmax.view(),
                  .weight = weight.view(),
                  .grad_input = grad_input.view(),
                  .targets = problem.targets(rank),
                  .label_smoothing = problem.label_smoothing},
                 {.num_threads = 2});
    std::vector<Expected> gradients;
    for (int64_t row = 0; row < rows; ++row) {
      const CrossEntropyExpected of_row(problem, ops, row);
      const double given = grad_output.get(problem.is_mean ? 0 : row);
      for (int64_t column = 0; column < columns; ++column) {
        gradients.push_back(
            cross_entropy_gradient_of(problem, of_row, row, rank * columns + column, given));
      }
    }
    EXPECT_TRUE(all_close(grad_input, gradients));
  }
}

}  // namespace transformer_engine::testing
