// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Activations and the bias gradient against FP64 formulas with derived bounds; the formulas of the
// gradients against finite differences.
#include <gtest/gtest.h>
#include <transformer_engine/activation.h>
#include <transformer_engine/error.h>

#include <string>
#include <vector>

#include "cpu/activation_kernels.h"
#include "helpers/closeness.h"
#include "helpers/fused_quantize.h"
#include "helpers/isas.h"
#include "reference/activation.h"

namespace {

namespace te = transformer_engine;
using te::ActivationKind;
using te::DType;
using te::testing::Expected;
using te::testing::kFloatRoundoff;
using te::testing::Matrix;

constexpr int kKindCount = te::cpu::kActivationCount;
const te::ActivationParams kParams = {.limit = 1.5F, .alpha = 1.3F, .glu_linear_offset = 0.75F};

ActivationKind kind_of(int index) { return static_cast<ActivationKind>(index); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// f of the table in activation.h; for gated kinds the function of the first half. GELU's
// 0.5 + 0.5 * tanh(u) is written as sigmoid(2u): at negative u the sum has no correct digit, even
// in FP64.
double plain_function(ActivationKind kind, double x) {
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
      const double a = std::min(x, static_cast<double>(kParams.limit));
      return a * sigmoid(static_cast<double>(kParams.alpha) * a);
    }
  }
  return 0.0;
}

double gate(ActivationKind kind, double b) {
  const double limit = kParams.limit;
  return kind == ActivationKind::kClampedSwiGLU
             ? std::clamp(b, -limit, limit) + static_cast<double>(kParams.glu_linear_offset)
             : b;
}

// Derivative of x * sigmoid(alpha x).
double silu_slope(double x, double alpha) {
  return sigmoid(alpha * x) * (1.0 + alpha * x * sigmoid(-alpha * x));
}

double plain_slope(ActivationKind kind, double x) {
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
      return x > static_cast<double>(kParams.limit)
                 ? 0.0
                 : silu_slope(x, static_cast<double>(kParams.alpha));
  }
  return 0.0;
}

double gate_slope(ActivationKind kind, double b) {
  return kind == ActivationKind::kClampedSwiGLU && std::abs(b) > static_cast<double>(kParams.limit)
             ? 0.0
             : 1.0;
}

// Relative error of f in FP32 at x. The argument v of the sigmoid carries 5 roundings (GELU's
// cubic), which exp turns into 5 |v| of its result and the sigmoid into that or less; 8 more for
// exp, sigmoid and the products. |v| grows like |x|^3 for GELU, but the sigmoid is 1 or gone beyond
// |v| = 104.
double relative_error(ActivationKind kind, double x) {
  const bool is_gelu = kind == ActivationKind::kGELU || kind == ActivationKind::kGEGLU;
  const double v = is_gelu ? 2 * x * (0.79788456 + 0.03567741 * x * x) : 1.702 * x;
  return (8 + 5 * std::min(std::abs(v), 104.0)) * kFloatRoundoff;
}

// What FP32 loses where a result or an exponential is denormal, times what multiplies it.
double tiny(double factor) {
  return 4 * te::testing::half_spacing(DType::kFloat32) * (1 + std::abs(factor));
}

struct Problem {
  ActivationKind kind;
  Matrix input, bias, grad_output;
  bool has_bias;

  Problem(ActivationKind activation, int64_t rows, int64_t cols, DType dtype, DType grad_dtype,
          bool with_bias)
      : kind(activation),
        input(dtype, rows, te::is_gated(activation) ? 2 * cols : cols),
        bias(DType::kBFloat16, 1, input.cols()),
        grad_output(grad_dtype, rows, cols),
        has_bias(with_bias) {
    te::testing::fill_normal(input, 1, 0.0F, 2.5F);
    te::testing::fill_normal(bias, 2);
    te::testing::fill_normal(grad_output, 3);
  }

  int64_t cols() const { return grad_output.cols(); }

  // input + bias, which the contract adds in FP32.
  double argument(int64_t row, int64_t col) {
    const auto x = static_cast<float>(input.get(row * input.cols() + col));
    return has_bias ? x + static_cast<float>(bias.get(col)) : x;
  }

  Expected output(int64_t row, int64_t i) {
    const double a = argument(row, i);
    const double f = plain_function(kind, a);
    const double b = te::is_gated(kind) ? gate(kind, argument(row, cols() + i)) : 1.0;
    return {f * b, (relative_error(kind, a) + 2 * kFloatRoundoff) * std::abs(f * b) +
                       tiny((1 + std::abs(a)) * b)};
  }

  // Gradient of element `col` of the input row, either half.
  Expected grad_input(int64_t row, int64_t col) {
    const int64_t i = col % cols();
    const double dy = grad_output.get(row * cols() + i);
    const double a = argument(row, i);
    if (col >= cols()) {
      const double b = argument(row, cols() + i);
      const double value = dy * plain_function(kind, a) * gate_slope(kind, b);
      return {value, (relative_error(kind, a) + 2 * kFloatRoundoff) * std::abs(value) +
                         tiny(dy * (1 + std::abs(a)))};
    }
    const double b = te::is_gated(kind) ? gate(kind, argument(row, cols() + i)) : 1.0;
    const double value = dy * b * plain_slope(kind, a);
    // f' = s + v' s (1 - s) cancels near its zero: bounded by the size of the terms, of which
    // sigmoid(v) with |f| <= |x| s is the larger.
    const double v = 2 * a * (0.79788456 + 0.03567741 * a * a);
    const double size =
        std::abs(plain_slope(kind, a)) +
        2 * (1 + std::abs(v)) * sigmoid(-std::abs(a)) * (kind != ActivationKind::kReLU ? 1.0 : 0.0);
    return {value,
            std::abs(dy * b) * size * relative_error(kind, a) + tiny(dy * b * (1 + std::abs(v)))};
  }
};

using ForwardFunction = void (*)(const te::ActivationForwardArgs&, const te::Context&);
using BackwardFunction = void (*)(const te::ActivationBackwardArgs&, const te::Context&);

void check_forward(Problem& problem, DType output_dtype, ForwardFunction run) {
  const int64_t rows = problem.grad_output.rows();
  Matrix output(output_dtype, rows, problem.cols());
  te::ActivationForwardArgs args;
  args.kind = problem.kind;
  args.params = kParams;
  args.input = problem.input.view();
  args.bias = problem.has_bias ? problem.bias.view() : te::TensorView{};
  args.output = output.view();
  run(args, {.num_threads = 2});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < problem.cols(); ++i) {
      expected.push_back(problem.output(row, i));
    }
  }
  EXPECT_TRUE(te::testing::all_close(output, expected));
}

void check_backward(Problem& problem, DType grad_input_dtype, BackwardFunction run) {
  const int64_t rows = problem.grad_output.rows();
  const int64_t input_cols = problem.input.cols();
  Matrix grad_input(grad_input_dtype, rows, input_cols), grad_bias(DType::kFloat32, 1, input_cols);
  te::ActivationBackwardArgs args;
  args.kind = problem.kind;
  args.params = kParams;
  args.grad_output = problem.grad_output.view();
  args.input = problem.input.view();
  args.bias = problem.has_bias ? problem.bias.view() : te::TensorView{};
  args.grad_input = grad_input.view();
  args.grad_bias = grad_bias.view();
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
    expected_bias[i].bound += te::testing::sum_roundoff(rows, 1, 0) * magnitudes[i];
  }
  EXPECT_TRUE(te::testing::all_close(grad_input, expected));
  EXPECT_TRUE(te::testing::all_close(grad_bias, expected_bias));
}

struct Shape {
  int64_t rows;
  int64_t cols;
};
const Shape kShapes[] = {{1, 1}, {3, 17}, {70, 64}, {2, 1031}};

TEST(Activation, MatchesTheFormulaForEveryKindTypeAndShape) {
  for (int index = 0; index < kKindCount; ++index) {
    for (const DType input : te::testing::kHighPrecision) {
      for (const DType other : te::testing::kHighPrecision) {
        for (const Shape shape : kShapes) {
          SCOPED_TRACE(::testing::Message()
                       << "kind " << index << " input " << te::dtype_name(input) << " other "
                       << te::dtype_name(other) << " shape " << shape.rows << "x" << shape.cols);
          Problem problem(kind_of(index), shape.rows, shape.cols, input, other,
                          shape.rows % 2 == 1);
          check_forward(problem, other, &te::activation_forward);
          check_backward(problem, input, &te::activation_backward);
        }
      }
    }
  }
}

TEST(Activation, TheReferenceMatchesTheFormula) {
  for (int index = 0; index < kKindCount; ++index) {
    SCOPED_TRACE(index);
    Problem problem(kind_of(index), 3, 33, DType::kFloat32, DType::kBFloat16, true);
    check_forward(problem, DType::kFloat16, &te::reference::activation_forward);
    check_backward(problem, DType::kFloat32, &te::reference::activation_backward);
  }
}

TEST(Activation, WholeRangeOfInputs) {
  // Every exponent: overflow of x^2 or of the sigmoid's argument must not surface as NaN.
  for (int index = 0; index < kKindCount; ++index) {
    for (const double sign : {1.0, -1.0}) {
      const ActivationKind kind = kind_of(index);
      Problem problem(kind, 1, 276, DType::kFloat32, DType::kFloat32, false);
      for (int64_t i = 0; i < 276; ++i) {
        problem.input.set(i,
                          static_cast<float>(sign * std::ldexp(1.37, static_cast<int>(i) - 149)));
      }
      Matrix output(DType::kFloat32, 1, 276), grad_input(DType::kFloat32, 1, problem.input.cols());
      te::activation_forward({.kind = kind,
                              .params = kParams,
                              .input = problem.input.view(),
                              .bias = {},
                              .output = output.view(),
                              .quantized = {}},
                             {});
      te::activation_backward({.kind = kind,
                               .params = kParams,
                               .grad_output = problem.grad_output.view(),
                               .input = problem.input.view(),
                               .bias = {},
                               .grad_input = grad_input.view(),
                               .grad_bias = {},
                               .quantized = {}},
                              {});
      for (int64_t i = 0; i < 276; ++i) {
        const Expected y = problem.output(0, i);
        const Expected slope = problem.grad_input(0, i);
        if (std::abs(y.value) < 1e38) {
          EXPECT_TRUE(te::testing::is_close(output.get(i), y, DType::kFloat32))
              << "kind " << index << " x " << problem.input.get(i) << " got " << output.get(i)
              << " expected " << y.value;
        }
        if (std::isfinite(slope.value) && std::abs(slope.value) < 1e38) {
          EXPECT_TRUE(te::testing::is_close(grad_input.get(i), slope, DType::kFloat32))
              << "kind " << index << " x " << problem.input.get(i) << " got " << grad_input.get(i)
              << " expected " << slope.value;
        }
      }
    }
  }
}

TEST(Activation, NaNStaysNaN) {
  for (int index = 0; index < kKindCount; ++index) {
    Problem problem(kind_of(index), 1, 20, DType::kBFloat16, DType::kBFloat16, false);
    problem.input.set(3, std::nanf(""));
    Matrix output(DType::kBFloat16, 1, 20);
    te::activation_forward({.kind = problem.kind,
                            .params = kParams,
                            .input = problem.input.view(),
                            .bias = {},
                            .output = output.view(),
                            .quantized = {}},
                           {});
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(std::isnan(output.get(i)), i == 3) << "kind " << index << " element " << i;
    }
  }
}

TEST(Activation, TheFormulasAgreeWithFiniteDifferences) {
  // A central difference errs by h^2 f''' and by FP64 rounding over h.
  constexpr double kStep = 1e-5;
  for (int index = 0; index < kKindCount; ++index) {
    for (double x = -6.03; x < 6.0; x += 0.21) {  // no kink of relu, srelu or clamp on the grid
      const double difference =
          (plain_function(kind_of(index), x + kStep) - plain_function(kind_of(index), x - kStep)) /
          (2 * kStep);
      EXPECT_NEAR(plain_slope(kind_of(index), x), difference, 1e-8) << index << " x " << x;
      const double gate_difference =
          (gate(kind_of(index), x + kStep) - gate(kind_of(index), x - kStep)) / (2 * kStep);
      EXPECT_NEAR(gate_slope(kind_of(index), x), gate_difference, 1e-8) << index << " x " << x;
    }
  }
}

TEST(Activation, ClampedBoundsBelongToTheInside) {
  Problem problem(ActivationKind::kClampedSwiGLU, 1, 2, DType::kFloat32, DType::kFloat32, false);
  problem.input.set(0, kParams.limit);
  problem.input.set(1, std::nextafterf(kParams.limit, 10.0F));
  problem.input.set(2, -kParams.limit);
  problem.input.set(3, std::nextafterf(-kParams.limit, -10.0F));
  check_backward(problem, DType::kFloat32, &te::activation_backward);
}

TEST(Activation, EmptyIsOrdinary) {
  for (int index = 0; index < kKindCount; ++index) {
    for (const Shape shape : {Shape{0, 8}, Shape{3, 0}}) {
      Problem problem(kind_of(index), shape.rows, shape.cols, DType::kBFloat16, DType::kBFloat16,
                      true);
      check_forward(problem, DType::kBFloat16, &te::activation_forward);
      check_backward(problem, DType::kBFloat16, &te::activation_backward);  // grad_bias is 0
    }
  }
}

TEST(Activation, FusedQuantizationEqualsASeparateOne) {
  for (const ActivationKind kind :
       {ActivationKind::kGELU, ActivationKind::kSwiGLU, ActivationKind::kClampedSwiGLU}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Problem problem(kind, 70, 301, dtype, dtype, true);
      te::testing::expect_fused_equals_separate(
          dtype, 70, 301, [&](te::TensorView output, const te::QuantizedOutput& quantized) {
            te::activation_forward({.kind = kind,
                                    .params = kParams,
                                    .input = problem.input.view(),
                                    .bias = problem.bias.view(),
                                    .output = output,
                                    .quantized = quantized},
                                   {.num_threads = 2});
          });
      Matrix grad_bias(DType::kFloat32, 1, problem.input.cols());
      te::testing::expect_fused_equals_separate(
          dtype, 70, problem.input.cols(),
          [&](te::TensorView grad_input, const te::QuantizedOutput& quantized) {
            te::activation_backward({.kind = kind,
                                     .params = kParams,
                                     .grad_output = problem.grad_output.view(),
                                     .input = problem.input.view(),
                                     .bias = problem.bias.view(),
                                     .grad_input = grad_input,
                                     .grad_bias = grad_bias.view(),
                                     .quantized = quantized},
                                    {.num_threads = 2});
          });
    }
  }
}

TEST(ActivationKernels, EveryInstructionSetGivesTheSameBits) {
  const auto forward = TE_TABLES_OF(te::cpu::ActivationForwardKernels, activation_forward_kernels);
  const auto backward =
      TE_TABLES_OF(te::cpu::ActivationBackwardKernels, activation_backward_kernels);
  for (int index = 0; index < kKindCount; ++index) {
    Problem problem(kind_of(index), 3, 133, DType::kFloat32, DType::kFloat32, false);
    Matrix output(DType::kFloat32, 3, 133), grad_input(DType::kFloat32, 3, problem.input.cols());
    for (size_t isa = 0; isa < forward.size(); ++isa) {
      for (const int io : {0, 3}) {  // FP32 throughout, and the kernel for mixed types
        Matrix other(DType::kFloat32, 3, 133), other_grad(DType::kFloat32, 3, problem.input.cols());
        const bool is_first = isa == 0 && io == 0;
        forward[isa].table->run[index][io]({.input = problem.input.view().data,
                                            .bias = nullptr,
                                            .output = (is_first ? output : other).view().data,
                                            .input_dtype = DType::kFloat32,
                                            .output_dtype = DType::kFloat32,
                                            .rows = 3,
                                            .cols = 133,
                                            .params = kParams});
        backward[isa].table->run[index][io](
            {.grad_output = problem.grad_output.view().data,
             .input = problem.input.view().data,
             .bias = nullptr,
             .grad_input = (is_first ? grad_input : other_grad).view().data,
             .bias_sum = nullptr,
             .grad_output_dtype = DType::kFloat32,
             .input_dtype = DType::kFloat32,
             .grad_input_dtype = DType::kFloat32,
             .rows = 3,
             .cols = 133,
             .params = kParams});
        if (!is_first) {
          EXPECT_TRUE(te::testing::same_bytes(other, output)) << forward[isa].isa << " " << index;
          EXPECT_TRUE(te::testing::same_bytes(other_grad, grad_input))
              << backward[isa].isa << " " << index;
        }
      }
    }
  }
}

using BiasFunction = void (*)(const te::BiasGradientArgs&, const te::Context&);

void check_bias_gradient(Matrix& grad_output, DType dtype, BiasFunction run) {
  Matrix grad_bias(dtype, 1, grad_output.cols());
  run({.grad_output = grad_output.view(), .grad_bias = grad_bias.view(), .quantized = {}},
      {.num_threads = 2});
  std::vector<Expected> expected(grad_output.cols());
  for (int64_t row = 0; row < grad_output.rows(); ++row) {
    for (int64_t i = 0; i < grad_output.cols(); ++i) {
      const double x = grad_output.get(row * grad_output.cols() + i);
      expected[i].value += x;
      expected[i].bound += std::abs(x) * te::testing::sum_roundoff(grad_output.rows(), 1, 0);
    }
  }
  EXPECT_TRUE(te::testing::all_close(grad_bias, expected));
}

TEST(BiasGradient, SumsRowsForEveryTypeAndShape) {
  for (const DType input : te::testing::kHighPrecision) {
    for (const DType output : te::testing::kHighPrecision) {
      for (const Shape shape : {Shape{0, 5}, {4, 0}, {1, 1}, {7, 33}, {1500, 70}, {33, 2049}}) {
        SCOPED_TRACE(::testing::Message()
                     << te::dtype_name(input) << " " << shape.rows << "x" << shape.cols);
        Matrix grad_output(input, shape.rows, shape.cols);
        te::testing::fill_normal(grad_output, 9);
        check_bias_gradient(grad_output, output, &te::bias_gradient);
        check_bias_gradient(grad_output, output, &te::reference::bias_gradient);
      }
    }
  }
}

TEST(BiasGradient, QuantizesWhatItReads) {
  Matrix grad_output(DType::kBFloat16, 150, 301), grad_bias(DType::kFloat32, 1, 301);
  te::testing::fill_normal(grad_output, 9);
  for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    te::testing::QuantizedBuffers expected(format, 150, 301), got(format, 150, 301);
    te::quantize(
        {.input = grad_output.view(), .output = expected.output(true, true), .noop = nullptr}, {});
    te::bias_gradient({.grad_output = grad_output.view(),
                       .grad_bias = grad_bias.view(),
                       .quantized = got.output(true, true)},
                      {.num_threads = 2});
    EXPECT_TRUE(te::testing::same_bytes(got.data, expected.data));
    EXPECT_TRUE(te::testing::same_bytes(got.data_transpose, expected.data_transpose));
    EXPECT_EQ(got.amax, expected.amax);
    EXPECT_EQ(got.scale_inv, expected.scale_inv);
  }
}

TEST(BiasGradient, TheThreadCountDoesNotChangeABit) {
  Matrix grad_output(DType::kBFloat16, 1111, 77), first(DType::kFloat32, 1, 77);
  te::testing::fill_random(grad_output, 4);
  te::bias_gradient({.grad_output = grad_output.view(), .grad_bias = first.view(), .quantized = {}},
                    {});
  for (const int threads : {2, 3, 7}) {
    Matrix other(DType::kFloat32, 1, 77);
    te::bias_gradient(
        {.grad_output = grad_output.view(), .grad_bias = other.view(), .quantized = {}},
        {.num_threads = threads});
    EXPECT_TRUE(te::testing::same_bytes(other, first)) << threads;
  }
}

// Runs `call` and expects an error whose message starts with `prefix`.
template <typename Error, typename Call>
void expect_error(const std::string& prefix, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "no error: " << prefix;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind(prefix, 0), 0U) << error.what();
  }
}

TEST(ActivationErrors, NameTheArgument) {
  Matrix input(DType::kFloat32, 4, 6), output(DType::kFloat32, 4, 6), half(DType::kFloat32, 4, 3),
      untouched(DType::kFloat32, 4, 6), bias(DType::kFloat32, 1, 6);
  const auto forward = [&](const auto& change) {
    te::ActivationForwardArgs args;
    args.input = input.view();
    args.output = output.view();
    change(args);
    te::activation_forward(args, {});
  };
  using Args = te::ActivationForwardArgs;
  expect_error<te::ValueError>("activation_forward: kind", [&] {
    forward([](Args& a) { a.kind = static_cast<ActivationKind>(12); });
  });
  expect_error<te::TypeError>("activation_forward: input",
                              [&] { forward([](Args& a) { a.input.dtype = DType::kInt64; }); });
  expect_error<te::ValueError>("activation_forward: output", [&] {
    forward([](Args& a) { a.kind = ActivationKind::kSwiGLU; });  // needs [4, 3]
  });
  expect_error<te::ValueError>("activation_forward: input", [&] {
    forward([](Args& a) {
      a.kind = ActivationKind::kSwiGLU;
      a.input.cols = 5;
    });
  });
  expect_error<te::ValueError>("activation_forward: bias", [&] {
    forward([&](Args& a) {
      a.bias = bias.view();
      a.bias.cols = 5;
    });
  });
  for (const char* name : {"limit", "alpha", "glu_linear_offset"}) {
    expect_error<te::ValueError>(std::string("activation_forward: ") + name, [&] {
      forward([&](Args& a) {
        a.kind = ActivationKind::kClampedSwiGLU;
        a.output = half.view();
        float& value = name[0] == 'l'   ? a.params.limit
                       : name[0] == 'a' ? a.params.alpha
                                        : a.params.glu_linear_offset;
        value = std::nanf("");
      });
    });
  }
  expect_error<te::ValueError>("activation_backward: grad_output", [&] {
    te::ActivationBackwardArgs args;
    args.input = input.view();
    args.grad_output = half.view();
    args.grad_input = output.view();
    te::activation_backward(args, {});
  });
  expect_error<te::ValueError>("bias_gradient: grad_bias", [&] {
    te::bias_gradient({.grad_output = input.view(), .grad_bias = {}, .quantized = {}}, {});
  });
  EXPECT_TRUE(te::testing::same_bytes(output, untouched));
}

}  // namespace
