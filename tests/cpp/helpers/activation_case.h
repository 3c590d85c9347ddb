// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Activations in FP64, what FP32 arithmetic may err by, and the checks of the ops against them:
// shared by the tests of all devices.
#pragma once

#include <gtest/gtest.h>
#include <transformer_engine/activation.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

constexpr int kActivationKindCount = static_cast<int>(ActivationKind::kSiTUGLU) + 1;
inline const ActivationParams kActivationParams = {
    .limit = 1.5F, .alpha = 1.3F, .glu_linear_offset = 0.75F, .beta1 = 2.5F, .beta2 = 3.25F};

inline ActivationKind kind_of(int index) { return static_cast<ActivationKind>(index); }

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

inline double tanh_slope(double u) { return 1.0 / (std::cosh(u) * std::cosh(u)); }

// f of the table in activation.h; for gated kinds the function of the first half. GELU's
// 0.5 + 0.5 * tanh(u) is written as sigmoid(2u): at negative u the sum has no correct digit, even
// in FP64.
inline double plain_function(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kGELU:
    case ActivationKind::kGEGLU:
      return x * sigmoid(2 * x * (0.79788456 + 0.03567741 * x * x));
    case ActivationKind::kQGELU:
    case ActivationKind::kQGEGLU:
      return x * sigmoid(1.702 * x);
    case ActivationKind::kReLU:
    case ActivationKind::kReGLU:
      return std::max(x, 0.0);
    case ActivationKind::kSReLU:
    case ActivationKind::kSReGLU:
      return x > 0.0 ? x * x : 0.0;
    case ActivationKind::kSiLU:
    case ActivationKind::kSwiGLU:
      return x * sigmoid(x);
    case ActivationKind::kGLU:
      return sigmoid(x);
    case ActivationKind::kClampedSwiGLU: {
      const double a = std::min(x, static_cast<double>(kActivationParams.limit));
      return a * sigmoid(static_cast<double>(kActivationParams.alpha) * a);
    }
    case ActivationKind::kSiTUGLU: {
      const double beta = kActivationParams.beta1;
      return beta * std::tanh(x / beta) * sigmoid(x);
    }
  }
  return 0.0;
}

inline double gate(ActivationKind kind, double b) {
  if (kind == ActivationKind::kSiTUGLU) {
    const double beta = kActivationParams.beta2;
    return beta * std::tanh(b / beta);
  }
  const double limit = kActivationParams.limit;
  return kind == ActivationKind::kClampedSwiGLU
             ? std::clamp(b, -limit, limit) +
                   static_cast<double>(kActivationParams.glu_linear_offset)
             : b;
}

// Derivative of x * sigmoid(alpha x).
inline double silu_slope(double x, double alpha) {
  return sigmoid(alpha * x) * (1.0 + alpha * x * sigmoid(-alpha * x));
}

inline double plain_slope(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kGELU:
    case ActivationKind::kGEGLU: {
      const double u = x * (0.79788456 + 0.03567741 * x * x);
      const double u_slope = 0.79788456 + 3 * 0.03567741 * x * x;
      return sigmoid(2 * u) * (1.0 + 2 * x * u_slope * sigmoid(-2 * u));
    }
    case ActivationKind::kQGELU:
    case ActivationKind::kQGEGLU:
      return silu_slope(x, 1.702);
    case ActivationKind::kReLU:
    case ActivationKind::kReGLU:
      return x > 0.0 ? 1.0 : 0.0;
    case ActivationKind::kSReLU:
    case ActivationKind::kSReGLU:
      return x > 0.0 ? 2.0 * x : 0.0;
    case ActivationKind::kSiLU:
    case ActivationKind::kSwiGLU:
      return silu_slope(x, 1.0);
    case ActivationKind::kGLU:
      return sigmoid(x) * sigmoid(-x);
    case ActivationKind::kClampedSwiGLU:
      return x > static_cast<double>(kActivationParams.limit)
                 ? 0.0
                 : silu_slope(x, static_cast<double>(kActivationParams.alpha));
    case ActivationKind::kSiTUGLU: {
      const double beta = kActivationParams.beta1;
      return tanh_slope(x / beta) * sigmoid(x) +
             beta * std::tanh(x / beta) * sigmoid(x) * sigmoid(-x);
    }
  }
  return 0.0;
}

inline double gate_slope(ActivationKind kind, double b) {
  if (kind == ActivationKind::kSiTUGLU) {
    return tanh_slope(b / static_cast<double>(kActivationParams.beta2));
  }
  return kind == ActivationKind::kClampedSwiGLU &&
                 std::abs(b) > static_cast<double>(kActivationParams.limit)
             ? 0.0
             : 1.0;
}

// Relative error of f in FP32 at x. The argument v of the sigmoid carries 5 roundings (GELU's
// cubic), which exp turns into 5 |v| of its result and the sigmoid into that or less; 8 more for
// exp, sigmoid and the products. |v| grows like |x|^3 for GELU, but the sigmoid is 1 or gone beyond
// |v| = 104. SiTUGLU has 12 more at most: quotient, tanh and product, or the slope of tanh, whose
// exponential's argument is below |v|.
inline double relative_error(ActivationKind kind, double x) {
  const bool is_gelu = kind == ActivationKind::kGELU || kind == ActivationKind::kGEGLU;
  const double v = is_gelu ? 2 * x * (0.79788456 + 0.03567741 * x * x) : 1.702 * x;
  const int constant = kind == ActivationKind::kSiTUGLU ? 20 : 8;
  return (constant + 5 * std::min(std::abs(v), 104.0)) * kFloatRoundoff;
}

// Relative error of the gate and of its slope. beta2 * tanh(u), u = b / beta2: 4 roundings for tanh
// and 2. Its slope 4e / (1 + e)^2: e = exp(-2|u|) carries 2 + 2|u| of the argument's rounding,
// 1 / (1 + e) half of that and 2 more, twice; 3 products: 12 + 4|u|, until e is gone.
inline double gate_error(ActivationKind kind, double b) {
  const double u = std::abs(b) / static_cast<double>(kActivationParams.beta2);
  return kind == ActivationKind::kSiTUGLU ? (12 + 4 * std::min(u, 104.0)) * kFloatRoundoff : 0.0;
}

// What FP32 loses where a result or an exponential is denormal, times what multiplies it.
inline double tiny(double factor) {
  return 4 * half_spacing(DType::kFloat32) * (1 + std::abs(factor));
}

struct ActivationCase;
// Relative error of a sum of cols() products. On the CPU each of 64 lanes adds its elements of each
// block, then the lanes are added by halves.
inline double row_sum_roundoff_of_lanes(const ActivationCase& problem);

struct ActivationCase {
  ActivationKind kind;
  Matrix input, bias, grad_output;
  bool has_bias;
  Matrix act_scales;  // [1, rows]
  bool has_scales = false;
  int64_t interleave = 0;
  double (*row_sum_roundoff)(const ActivationCase&) = &row_sum_roundoff_of_lanes;

  ActivationCase(ActivationKind activation, int64_t rows, int64_t cols, DType dtype,
                 DType grad_dtype, bool with_bias)
      : kind(activation),
        input(dtype, rows, is_gated(activation) ? 2 * cols : cols),
        bias(DType::kBFloat16, 1, input.cols()),
        grad_output(grad_dtype, rows, cols),
        has_bias(with_bias),
        act_scales(grad_dtype, 1, rows) {
    fill_normal(input, 1, 0.0F, 2.5F);
    fill_normal(bias, 2);
    fill_normal(grad_output, 3);
    fill_normal(act_scales, 4);
  }

  int64_t cols() const { return grad_output.cols(); }
  int64_t block() const { return interleave > 0 ? interleave : std::max<int64_t>(cols(), 1); }
  int64_t first_col(int64_t i) const {
    return is_gated(kind) ? i / block() * 2 * block() + i % block() : i;
  }
  int64_t second_col(int64_t i) const { return first_col(i) + block(); }
  double scale(int64_t row) { return has_scales ? act_scales.get(row) : 1.0; }

  // input + bias, which the contract adds in FP32.
  double argument(int64_t row, int64_t col) {
    const auto x = static_cast<float>(input.get(row * input.cols() + col));
    return has_bias ? x + static_cast<float>(bias.get(col)) : x;
  }

  Expected unscaled_output(int64_t row, int64_t i) {
    const double a = argument(row, first_col(i));
    const double f = plain_function(kind, a);
    const double x = is_gated(kind) ? argument(row, second_col(i)) : 0.0;
    const double b = is_gated(kind) ? gate(kind, x) : 1.0;
    const double error = relative_error(kind, a) + gate_error(kind, x) + 2 * kFloatRoundoff;
    return {f * b, error * std::abs(f * b) + tiny((1 + std::abs(a)) * b)};
  }

  Expected output(int64_t row, int64_t i) {
    const Expected y = unscaled_output(row, i);
    const double value = y.value * scale(row);
    return {value, std::abs(scale(row)) * y.bound +
                       (has_scales ? std::abs(value) * kFloatRoundoff + tiny(0.0) : 0.0)};
  }

  Expected grad_act_scale(int64_t row) {
    Expected sum;
    for (int64_t i = 0; i < cols(); ++i) {
      const double dy = grad_output.get(row * cols() + i);
      const Expected y = unscaled_output(row, i);
      sum.value += dy * y.value;
      sum.bound +=
          std::abs(dy) * (y.bound + row_sum_roundoff(*this) * (std::abs(y.value) + y.bound));
    }
    return sum;
  }

  // Gradient of element `col` of the input row, either half.
  Expected grad_input(int64_t row, int64_t col) {
    const bool is_first = !is_gated(kind) || col % (2 * block()) < block();
    const int64_t i = is_gated(kind) ? col / (2 * block()) * block() + col % block() : col;
    const double dy = grad_output.get(row * cols() + i) * scale(row);
    const double scaling = has_scales ? kFloatRoundoff : 0.0;
    const double a = argument(row, first_col(i));
    const double x = is_gated(kind) ? argument(row, second_col(i)) : 0.0;
    const double other_error = gate_error(kind, x) + scaling;
    if (!is_first) {
      const double value = dy * plain_function(kind, a) * gate_slope(kind, x);
      return {value,
              (relative_error(kind, a) + other_error + 2 * kFloatRoundoff) * std::abs(value) +
                  tiny(dy * (1 + std::abs(a)))};
    }
    const double b = is_gated(kind) ? gate(kind, x) : 1.0;
    const double value = dy * b * plain_slope(kind, a);
    // f' = s + v' s (1 - s) cancels near its zero: bounded by the size of the terms, of which
    // sigmoid(v) with |f| <= |x| s is the larger.
    const double v = 2 * a * (0.79788456 + 0.03567741 * a * a);
    const double size =
        std::abs(plain_slope(kind, a)) +
        2 * (1 + std::abs(v)) * sigmoid(-std::abs(a)) * (kind != ActivationKind::kReLU ? 1.0 : 0.0);
    return {value, std::abs(dy * b) * size * (relative_error(kind, a) + other_error) +
                       tiny(dy * b * (1 + std::abs(v)))};
  }
};

inline double row_sum_roundoff_of_lanes(const ActivationCase& problem) {
  constexpr int kLanes = 64;
  const int64_t block = problem.block();
  const int64_t terms = (problem.cols() + block - 1) / block * ((block + kLanes - 1) / kLanes);
  return sum_roundoff(terms * kLanes, kLanes, 1);
}

// What bias_gradient computes.
inline std::vector<Expected> column_sums(Matrix& grad_output) {
  std::vector<Expected> sums(static_cast<size_t>(grad_output.cols()));
  for (int64_t row = 0; row < grad_output.rows(); ++row) {
    for (int64_t i = 0; i < grad_output.cols(); ++i) {
      const double x = grad_output.get(row * grad_output.cols() + i);
      sums[i].value += x;
      sums[i].bound += std::abs(x) * sum_roundoff(grad_output.rows(), 1, 0);
    }
  }
  return sums;
}

using ForwardFunction = void (*)(const ActivationForwardArgs&, const Context&);
using BackwardFunction = void (*)(const ActivationBackwardArgs&, const Context&);

inline void check_forward(ActivationCase& problem, DType output_dtype, ForwardFunction run) {
  const int64_t rows = problem.grad_output.rows();
  Matrix output(output_dtype, rows, problem.cols());
  ActivationForwardArgs args;
  args.kind = problem.kind;
  args.params = kActivationParams;
  args.input = problem.input.view();
  args.bias = problem.has_bias ? problem.bias.view() : TensorView{};
  args.output = output.view();
  args.act_scales = problem.has_scales ? problem.act_scales.view() : TensorView{};
  args.glu_interleave_size = problem.interleave;
  run(args, {.num_threads = 2});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < problem.cols(); ++i) {
      expected.push_back(problem.output(row, i));
    }
  }
  EXPECT_TRUE(all_close(output, expected));
}

inline void check_backward(ActivationCase& problem, DType grad_input_dtype, BackwardFunction run) {
  const int64_t rows = problem.grad_output.rows();
  const int64_t input_cols = problem.input.cols();
  Matrix grad_input(grad_input_dtype, rows, input_cols), grad_bias(DType::kFloat32, 1, input_cols);
  Matrix grad_scales(grad_input_dtype, 1, rows);
  ActivationBackwardArgs args;
  args.kind = problem.kind;
  args.params = kActivationParams;
  args.grad_output = problem.grad_output.view();
  args.input = problem.input.view();
  args.bias = problem.has_bias ? problem.bias.view() : TensorView{};
  args.grad_input = grad_input.view();
  args.grad_bias = grad_bias.view();
  args.act_scales = problem.has_scales ? problem.act_scales.view() : TensorView{};
  args.grad_act_scales = problem.has_scales ? grad_scales.view() : TensorView{};
  args.glu_interleave_size = problem.interleave;
  run(args, {.num_threads = 2});
  std::vector<Expected> expected, expected_bias(input_cols);
  std::vector<double> magnitudes(input_cols);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < input_cols; ++i) {
      expected.push_back(problem.grad_input(row, i));
      expected_bias[i].value += expected.back().value;
      expected_bias[i].bound += expected.back().bound;
      magnitudes[i] += std::abs(expected.back().value);
    }
  }
  for (int64_t i = 0; i < input_cols; ++i) {
    expected_bias[i].bound += sum_roundoff(rows, 1, 0) * magnitudes[i];
  }
  EXPECT_TRUE(all_close(grad_input, expected));
  EXPECT_TRUE(all_close(grad_bias, expected_bias));
  if (problem.has_scales) {
    std::vector<Expected> expected_scales;
    for (int64_t row = 0; row < rows; ++row) {
      expected_scales.push_back(problem.grad_act_scale(row));
    }
    EXPECT_TRUE(all_close(grad_scales, expected_scales));
  }
}

// Every exponent: overflow of x^2 or of the sigmoid's argument must not surface as NaN.
inline void check_whole_range(ActivationKind kind, ForwardFunction forward,
                              BackwardFunction backward) {
  constexpr int64_t kExponents = 276;
  const auto expect_close = [&](Matrix& got, int64_t i, const Expected& expected, double x) {
    if (std::isfinite(expected.value) && std::abs(expected.value) < 1e38) {
      EXPECT_TRUE(is_close(got.get(i), expected, DType::kFloat32))
          << "kind " << static_cast<int>(kind) << " x " << x << " got " << got.get(i)
          << " expected " << expected.value;
    }
  };
  for (const double sign : {1.0, -1.0}) {
    ActivationCase problem(kind, 1, kExponents, DType::kFloat32, DType::kFloat32, false);
    for (int64_t i = 0; i < kExponents; ++i) {
      problem.input.set(i, static_cast<float>(sign * std::ldexp(1.37, static_cast<int>(i) - 149)));
    }
    Matrix output(DType::kFloat32, 1, kExponents);
    Matrix grad_input(DType::kFloat32, 1, problem.input.cols());
    forward({.kind = kind,
             .params = kActivationParams,
             .input = problem.input.view(),
             .bias = {},
             .output = output.view(),
             .quantized = {},
             .act_scales = {}},
            {});
    backward({.kind = kind,
              .params = kActivationParams,
              .grad_output = problem.grad_output.view(),
              .input = problem.input.view(),
              .bias = {},
              .grad_input = grad_input.view(),
              .grad_bias = {},
              .quantized = {},
              .act_scales = {},
              .grad_act_scales = {}},
             {});
    for (int64_t i = 0; i < kExponents; ++i) {
      expect_close(output, i, problem.output(0, i), problem.input.get(i));
      expect_close(grad_input, i, problem.grad_input(0, i), problem.input.get(i));
    }
  }
}

}  // namespace transformer_engine::testing
