// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Problems of LayerNorm and RMSNorm, and what any implementation must give for them: the FP64
// formula with derived bounds.
#pragma once

#include <transformer_engine/normalization.h>

#include <vector>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

inline constexpr double kNormEpsilon = 1e-5F;
inline constexpr SumOrder kCpuRowOrder{.lanes = 64};

struct NormShape {
  int64_t rows;
  int64_t hidden;
};
struct ExactStatistics {
  double mean = 0.0;
  double rstd = 0.0;
  double mean_bound = 0.0;
  double rstd_bound = 0.0;
};

inline ExactStatistics exact_statistics(NormKind kind, const double* x, int64_t hidden,
                                        const SumOrder& order = kCpuRowOrder) {
  ExactStatistics result;
  const auto n = static_cast<double>(hidden);
  if (kind == NormKind::kLayerNorm) {
    for (int64_t i = 0; i < hidden; ++i) {
      result.mean += x[i] / n;
    }
  }
  double squares = 0.0;
  double magnitudes = 0.0;
  for (int64_t i = 0; i < hidden; ++i) {
    squares += (x[i] - result.mean) * (x[i] - result.mean) / n;
    magnitudes += std::abs(x[i]) / n;
  }
  result.rstd = 1.0 / std::sqrt(squares + kNormEpsilon);
  // The first mean is off by the sum's error; the mean of the deviations repairs that up to the
  // error of its own, far smaller sum and the rounding of the result.
  const double sum_error = order.roundoff(hidden, 2);
  const double first_error = kind == NormKind::kLayerNorm ? sum_error * magnitudes : 0.0;
  const double deviations = std::sqrt(squares) + first_error;
  result.mean_bound = kind == NormKind::kLayerNorm
                          ? sum_error * deviations + 2 * kFloatRoundoff * std::abs(result.mean)
                          : 0.0;
  // Relative: half that of the variance (its sum, and the deviations' own rounding about a mean
  // that is off), then a square root and a division.
  const double variance_error =
      (sum_error + 4 * kFloatRoundoff) * (squares + first_error * first_error) +
      2 * deviations * kFloatRoundoff * std::abs(result.mean);
  result.rstd_bound =
      result.rstd * (0.5 * variance_error * result.rstd * result.rstd + 4 * kFloatRoundoff);
  return result;
}

struct NormForwardProblem {
  NormKind kind;
  Matrix input, gamma, beta;
  bool zero_centered;
  SumOrder order = kCpuRowOrder;  // of the sums over a row of the function under test

  NormForwardProblem(NormKind norm_kind, NormShape shape, DType input_dtype, DType gamma_dtype,
                     bool is_zero_centered)
      : kind(norm_kind),
        input(input_dtype, shape.rows, shape.hidden),
        gamma(gamma_dtype, 1, shape.hidden),
        beta(gamma_dtype, 1, shape.hidden),
        zero_centered(is_zero_centered) {
    fill_normal(input, 1, 0.5F, 2.0F);
    fill_normal(gamma, 2, zero_centered ? 0.0F : 1.0F, 0.25F);
    fill_normal(beta, 3);
  }

  double gain(int64_t i) { return gamma.get(i) + (zero_centered ? 1.0 : 0.0); }

  NormForwardArgs args(TensorView output, float* mean, float* rstd) {
    NormForwardArgs result;
    result.kind = kind;
    result.input = input.view();
    result.gamma = gamma.view();
    result.zero_centered_gamma = zero_centered;
    result.output = output;
    result.rstd = rstd;
    if (kind == NormKind::kLayerNorm) {
      result.beta = beta.view();
      result.mean = mean;
    }
    return result;
  }

  Expected expected(const ExactStatistics& statistics, int64_t row, int64_t i) {
    const double deviation = input.get(row * input.cols() + i) - statistics.mean;
    const double scaled = deviation * statistics.rstd * gain(i);
    const double offset = kind == NormKind::kLayerNorm ? beta.get(i) : 0.0;
    // 1 + gamma, the difference, two products and the sum round once each, to a denormal perhaps.
    return {scaled + offset, std::abs(gain(i)) * (statistics.rstd * statistics.mean_bound +
                                                  std::abs(deviation) * statistics.rstd_bound) +
                                 4 * kFloatRoundoff * std::abs(scaled) +
                                 kFloatRoundoff * std::abs(scaled + offset) +
                                 half_spacing(DType::kFloat32) * (1 + std::abs(gain(i)))};
  }
};

using NormForwardFunction = void (*)(const NormForwardArgs&, const Context&);

inline void check_norm_forward(NormForwardProblem& problem, DType output_dtype,
                               NormForwardFunction run) {
  const int64_t rows = problem.input.rows();
  const int64_t hidden = problem.input.cols();
  Matrix output(output_dtype, rows, hidden), mean(DType::kFloat32, 1, rows),
      rstd(DType::kFloat32, 1, rows);
  run(problem.args(output.view(), mean.data<float>(), rstd.data<float>()), {});
  const auto x = values_of(problem.input);
  std::vector<Expected> expected, expected_mean, expected_rstd;
  for (int64_t row = 0; row < rows; ++row) {
    const ExactStatistics exact =
        exact_statistics(problem.kind, x.data() + row * hidden, hidden, problem.order);
    expected_mean.push_back({exact.mean, exact.mean_bound});
    expected_rstd.push_back({exact.rstd, exact.rstd_bound});
    for (int64_t i = 0; i < hidden; ++i) {
      expected.push_back(problem.expected(exact, row, i));
    }
  }
  EXPECT_TRUE(all_close(output, expected));
  EXPECT_TRUE(all_close(rstd, expected_rstd));
  if (problem.kind == NormKind::kLayerNorm) {
    EXPECT_TRUE(all_close(mean, expected_mean));
  }
}

struct NormBackwardProblem {
  NormForwardProblem forward;
  Matrix grad_output, residual, mean, rstd;
  SumOrder order{.lanes = 16};  // of the two sums over a row

  NormBackwardProblem(NormKind kind, NormShape shape, DType dtype, DType grad_output_dtype,
                      DType residual_dtype, DType gamma_dtype)
      : forward(kind, shape, dtype, gamma_dtype, shape.rows % 2 == 0),
        grad_output(grad_output_dtype, shape.rows, shape.hidden),
        residual(residual_dtype, shape.rows, shape.hidden),
        mean(DType::kFloat32, 1, shape.rows),
        rstd(DType::kFloat32, 1, shape.rows) {
    fill_normal(grad_output, 11);
    fill_normal(residual, 12);
    const auto x = values_of(forward.input);
    for (int64_t row = 0; row < shape.rows; ++row) {
      const ExactStatistics exact =
          exact_statistics(kind, x.data() + row * shape.hidden, shape.hidden);
      mean.set(row, static_cast<float>(exact.mean));
      rstd.set(row, static_cast<float>(exact.rstd));
    }
  }

  NormBackwardArgs args() {
    NormBackwardArgs result;
    result.kind = forward.kind;
    result.grad_output = grad_output.view();
    result.input = forward.input.view();
    result.gamma = forward.gamma.view();
    result.mean = forward.kind == NormKind::kLayerNorm ? mean.data<float>() : nullptr;
    result.rstd = rstd.data<float>();
    result.zero_centered_gamma = forward.zero_centered;
    return result;
  }

  double xhat(int64_t row, int64_t i) {
    const double center = forward.kind == NormKind::kLayerNorm ? mean.get(row) : 0.0;
    return (forward.input.get(row * forward.input.cols() + i) - center) * rstd.get(row);
  }

  // grad_input of one row. Bounds: the two means by their sums' errors, each product and
  // difference by one rounding.
  void append_grad_input(int64_t row, bool has_residual, std::vector<Expected>* expected) {
    const int64_t hidden = forward.input.cols();
    const auto n = static_cast<double>(hidden);
    double mean_w = 0.0, mean_wx = 0.0, size_w = 0.0, size_wx = 0.0;
    for (int64_t i = 0; i < hidden; ++i) {
      const double w = grad_output.get(row * hidden + i) * forward.gain(i);
      mean_w += forward.kind == NormKind::kLayerNorm ? w / n : 0.0;
      mean_wx += w * xhat(row, i) / n;
      size_w += std::abs(w) / n;
      size_wx += std::abs(w * xhat(row, i)) / n;
    }
    const double sum_error = order.roundoff(hidden, 5);
    for (int64_t i = 0; i < hidden; ++i) {
      const double w = grad_output.get(row * hidden + i) * forward.gain(i);
      const double x = xhat(row, i);
      const double residual_value = has_residual ? residual.get(row * hidden + i) : 0.0;
      const double value = rstd.get(row) * (w - mean_w - x * mean_wx);
      const double bound =
          rstd.get(row) *
          (sum_error * (size_w + std::abs(x) * size_wx) +
           kFloatRoundoff * (6 * std::abs(w) + 4 * std::abs(mean_w) + 6 * std::abs(x * mean_wx)));
      expected->push_back(
          {value + residual_value,
           bound + 2 * kFloatRoundoff * (std::abs(value) + std::abs(residual_value))});
    }
  }

  // The two weight gradients of one column: chunks of 16 rows or more are summed in order, then
  // the chunks, so no term passes more additions than there are rows.
  Expected grad_gamma(int64_t i) {
    double sum = 0.0, size = 0.0;
    for (int64_t row = 0; row < grad_output.rows(); ++row) {
      const double term = grad_output.get(row * grad_output.cols() + i) * xhat(row, i);
      sum += term;
      size += std::abs(term);
    }
    return {sum, sum_roundoff(grad_output.rows(), 1, 3) * size};
  }
  Expected grad_beta(int64_t i) {
    double sum = 0.0, size = 0.0;
    for (int64_t row = 0; row < grad_output.rows(); ++row) {
      sum += grad_output.get(row * grad_output.cols() + i);
      size += std::abs(grad_output.get(row * grad_output.cols() + i));
    }
    return {sum, sum_roundoff(grad_output.rows(), 1, 0) * size};
  }
};

using NormBackwardFunction = void (*)(const NormBackwardArgs&, const Context&);

struct WantedNormGradients {
  bool input = true, gamma = true, beta = true, residual = false;
};

inline void check_norm_backward(NormBackwardProblem& problem, DType grad_input_dtype,
                                WantedNormGradients wanted, NormBackwardFunction run) {
  const int64_t rows = problem.grad_output.rows();
  const int64_t hidden = problem.grad_output.cols();
  wanted.beta = wanted.beta && problem.forward.kind == NormKind::kLayerNorm;
  const DType gamma_dtype = problem.forward.gamma.view().dtype;
  Matrix grad_input(grad_input_dtype, rows, hidden), grad_gamma(gamma_dtype, 1, hidden),
      grad_beta(gamma_dtype, 1, hidden);
  NormBackwardArgs args = problem.args();
  args.grad_input = wanted.input ? grad_input.view() : TensorView{};
  args.grad_gamma = wanted.gamma ? grad_gamma.view() : TensorView{};
  args.grad_beta = wanted.beta ? grad_beta.view() : TensorView{};
  args.grad_residual = wanted.residual ? problem.residual.view() : TensorView{};
  run(args, {.num_threads = 2});
  std::vector<Expected> expected, expected_gamma, expected_beta;
  for (int64_t row = 0; row < rows; ++row) {
    problem.append_grad_input(row, wanted.residual, &expected);
  }
  for (int64_t i = 0; i < hidden; ++i) {
    expected_gamma.push_back(problem.grad_gamma(i));
    expected_beta.push_back(problem.grad_beta(i));
  }
  if (wanted.input) {
    EXPECT_TRUE(all_close(grad_input, expected));
  }
  if (wanted.gamma) {
    EXPECT_TRUE(all_close(grad_gamma, expected_gamma));
  }
  if (wanted.beta) {
    EXPECT_TRUE(all_close(grad_beta, expected_beta));
  }
}

}  // namespace transformer_engine::testing
