// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm against the FP64 formula with derived bounds, the formula of the gradient
// against finite differences.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/normalization.h>

#include <string>
#include <vector>

#include "cpu/norm_kernels.h"
#include "helpers/closeness.h"
#include "helpers/fused_quantize.h"
#include "helpers/isas.h"
#include "reference/normalization.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::NormKind;
using te::testing::Expected;
using te::testing::kFloatRoundoff;
using te::testing::Matrix;

constexpr double kEpsilon = 1e-5F;
constexpr NormKind kKinds[] = {NormKind::kLayerNorm, NormKind::kRMSNorm};

struct Shape {
  int64_t rows;
  int64_t hidden;
};
const Shape kShapes[] = {{1, 1}, {3, 7}, {5, 64}, {2, 1000}, {18, 129}, {4, 4099}};

struct Statistics {
  double mean = 0.0;
  double rstd = 0.0;
  double mean_bound = 0.0;
  double rstd_bound = 0.0;
};

Statistics exact_statistics(NormKind kind, const double* x, int64_t hidden) {
  Statistics result;
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
  result.rstd = 1.0 / std::sqrt(squares + kEpsilon);
  // The first mean is off by the sum's error; the mean of the deviations repairs that up to the
  // error of its own, far smaller sum and the rounding of the result.
  const double sum_error = te::testing::sum_roundoff(hidden, 64, 2);
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

struct ForwardProblem {
  NormKind kind;
  Matrix input, gamma, beta;
  bool zero_centered;

  ForwardProblem(NormKind norm_kind, Shape shape, DType input_dtype, DType gamma_dtype,
                 bool is_zero_centered)
      : kind(norm_kind),
        input(input_dtype, shape.rows, shape.hidden),
        gamma(gamma_dtype, 1, shape.hidden),
        beta(gamma_dtype, 1, shape.hidden),
        zero_centered(is_zero_centered) {
    te::testing::fill_normal(input, 1, 0.5F, 2.0F);
    te::testing::fill_normal(gamma, 2, zero_centered ? 0.0F : 1.0F, 0.25F);
    te::testing::fill_normal(beta, 3);
  }

  double gain(int64_t i) { return gamma.get(i) + (zero_centered ? 1.0 : 0.0); }

  te::NormForwardArgs args(te::TensorView output, float* mean, float* rstd) {
    te::NormForwardArgs result;
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

  Expected expected(const Statistics& statistics, int64_t row, int64_t i) {
    const double deviation = input.get(row * input.cols() + i) - statistics.mean;
    const double scaled = deviation * statistics.rstd * gain(i);
    const double offset = kind == NormKind::kLayerNorm ? beta.get(i) : 0.0;
    // 1 + gamma, the difference, two products and the sum round once each, to a denormal perhaps.
    return {scaled + offset,
            std::abs(gain(i)) * (statistics.rstd * statistics.mean_bound +
                                 std::abs(deviation) * statistics.rstd_bound) +
                4 * kFloatRoundoff * std::abs(scaled) + kFloatRoundoff * std::abs(scaled + offset) +
                te::testing::half_spacing(DType::kFloat32) * (1 + std::abs(gain(i)))};
  }
};

using ForwardFunction = void (*)(const te::NormForwardArgs&, const te::Context&);

void check_forward(ForwardProblem& problem, DType output_dtype, ForwardFunction run) {
  const int64_t rows = problem.input.rows();
  const int64_t hidden = problem.input.cols();
  Matrix output(output_dtype, rows, hidden), mean(DType::kFloat32, 1, rows),
      rstd(DType::kFloat32, 1, rows);
  run(problem.args(output.view(), mean.data<float>(), rstd.data<float>()), {});
  const auto x = te::testing::values_of(problem.input);
  std::vector<Expected> expected, expected_mean, expected_rstd;
  for (int64_t row = 0; row < rows; ++row) {
    const Statistics exact = exact_statistics(problem.kind, x.data() + row * hidden, hidden);
    expected_mean.push_back({exact.mean, exact.mean_bound});
    expected_rstd.push_back({exact.rstd, exact.rstd_bound});
    for (int64_t i = 0; i < hidden; ++i) {
      expected.push_back(problem.expected(exact, row, i));
    }
  }
  EXPECT_TRUE(te::testing::all_close(output, expected));
  EXPECT_TRUE(te::testing::all_close(rstd, expected_rstd));
  if (problem.kind == NormKind::kLayerNorm) {
    EXPECT_TRUE(te::testing::all_close(mean, expected_mean));
  }
}

TEST(NormForward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const NormKind kind : kKinds) {
    for (const DType input : te::testing::kHighPrecision) {
      for (const DType gamma : te::testing::kHighPrecision) {
        for (const DType output : te::testing::kHighPrecision) {
          for (const Shape shape : kShapes) {
            SCOPED_TRACE(::testing::Message()
                         << "kind " << static_cast<int>(kind) << " input " << te::dtype_name(input)
                         << " gamma " << te::dtype_name(gamma) << " shape " << shape.rows << "x"
                         << shape.hidden);
            ForwardProblem problem(kind, shape, input, gamma, shape.rows % 2 == 0);
            check_forward(problem, output, &te::norm_forward);
          }
        }
      }
    }
  }
}

TEST(NormForward, TheReferenceMatchesTheFormula) {
  for (const NormKind kind : kKinds) {
    for (const bool zero_centered : {false, true}) {
      ForwardProblem problem(kind, {3, 65}, DType::kFloat16, DType::kBFloat16, zero_centered);
      check_forward(problem, DType::kFloat32, &te::reference::norm_forward);
    }
  }
}

TEST(NormForward, KeepsTheVarianceOfRowsFarFromZero) {
  // E[x^2] - mean^2 in FP32 has no correct digit here: 1e8 +- 1.
  ForwardProblem problem(NormKind::kLayerNorm, {4, 1000}, DType::kFloat32, DType::kFloat32, false);
  te::testing::fill_normal(problem.input, 5, 1e4F, 1.0F);
  check_forward(problem, DType::kFloat32, &te::norm_forward);
}

TEST(NormForward, AcceptsConstantAndTinyRows) {
  for (const NormKind kind : kKinds) {
    for (const float value : {0.0F, 0.1F, -1e4F, 0x1p-140F}) {
      SCOPED_TRACE(value);
      ForwardProblem problem(kind, {2, 77}, DType::kFloat32, DType::kFloat32, false);
      for (int64_t i = 0; i < problem.input.numel(); ++i) {
        problem.input.set(i, value);
      }
      check_forward(problem, DType::kFloat32, &te::norm_forward);
    }
  }
}

TEST(NormForward, InfAndNaNStayInTheirRow) {
  for (const NormKind kind : kKinds) {
    for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
      ForwardProblem problem(kind, {3, 70}, DType::kBFloat16, DType::kFloat32, false);
      Matrix clean(DType::kBFloat16, 3, 70), output(DType::kBFloat16, 3, 70);
      te::norm_forward(problem.args(clean.view(), nullptr, nullptr), {});
      problem.input.set(70 + 69, bad);
      te::norm_forward(problem.args(output.view(), nullptr, nullptr), {});
      for (int64_t i = 0; i < 70; ++i) {
        EXPECT_EQ(output.get(i), clean.get(i));
        EXPECT_EQ(output.get(140 + i), clean.get(140 + i));
      }
      EXPECT_TRUE(std::isnan(output.get(70 + 69)));
    }
  }
}

TEST(NormForward, EmptyIsOrdinary) {
  for (const NormKind kind : kKinds) {
    for (const Shape shape : {Shape{0, 8}, Shape{3, 0}}) {
      ForwardProblem problem(kind, shape, DType::kFloat32, DType::kFloat32, false);
      Matrix output(DType::kFloat32, shape.rows, shape.hidden), rstd(DType::kFloat32, 1, 3);
      te::norm_forward(problem.args(output.view(), nullptr, rstd.data<float>()), {});
    }
  }
}

TEST(NormForward, FusedQuantizationEqualsASeparateOne) {
  for (const NormKind kind : kKinds) {
    for (const DType dtype : te::testing::kHighPrecision) {
      ForwardProblem problem(kind, {70, 301}, DType::kBFloat16, DType::kFloat32, false);
      te::testing::expect_fused_equals_separate(
          dtype, 70, 301, [&](te::TensorView output, const te::QuantizedOutput& quantized) {
            te::NormForwardArgs args = problem.args(output, nullptr, nullptr);
            args.quantized = quantized;
            te::norm_forward(args, {.num_threads = 2});
          });
    }
  }
}

struct BackwardProblem {
  ForwardProblem forward;
  Matrix grad_output, residual, mean, rstd;

  BackwardProblem(NormKind kind, Shape shape, DType dtype, DType grad_output_dtype,
                  DType residual_dtype, DType gamma_dtype)
      : forward(kind, shape, dtype, gamma_dtype, shape.rows % 2 == 0),
        grad_output(grad_output_dtype, shape.rows, shape.hidden),
        residual(residual_dtype, shape.rows, shape.hidden),
        mean(DType::kFloat32, 1, shape.rows),
        rstd(DType::kFloat32, 1, shape.rows) {
    te::testing::fill_normal(grad_output, 11);
    te::testing::fill_normal(residual, 12);
    const auto x = te::testing::values_of(forward.input);
    for (int64_t row = 0; row < shape.rows; ++row) {
      const Statistics exact = exact_statistics(kind, x.data() + row * shape.hidden, shape.hidden);
      mean.set(row, static_cast<float>(exact.mean));
      rstd.set(row, static_cast<float>(exact.rstd));
    }
  }

  te::NormBackwardArgs args() {
    te::NormBackwardArgs result;
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
    const double sum_error = te::testing::sum_roundoff(hidden, 16, 5);
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
    return {sum, te::testing::sum_roundoff(grad_output.rows(), 1, 3) * size};
  }
  Expected grad_beta(int64_t i) {
    double sum = 0.0, size = 0.0;
    for (int64_t row = 0; row < grad_output.rows(); ++row) {
      sum += grad_output.get(row * grad_output.cols() + i);
      size += std::abs(grad_output.get(row * grad_output.cols() + i));
    }
    return {sum, te::testing::sum_roundoff(grad_output.rows(), 1, 0) * size};
  }
};

using BackwardFunction = void (*)(const te::NormBackwardArgs&, const te::Context&);

struct WantedGradients {
  bool input = true, gamma = true, beta = true, residual = false;
};

void check_backward(BackwardProblem& problem, DType grad_input_dtype, WantedGradients wanted,
                    BackwardFunction run) {
  const int64_t rows = problem.grad_output.rows();
  const int64_t hidden = problem.grad_output.cols();
  wanted.beta = wanted.beta && problem.forward.kind == NormKind::kLayerNorm;
  const DType gamma_dtype = problem.forward.gamma.view().dtype;
  Matrix grad_input(grad_input_dtype, rows, hidden), grad_gamma(gamma_dtype, 1, hidden),
      grad_beta(gamma_dtype, 1, hidden);
  te::NormBackwardArgs args = problem.args();
  args.grad_input = wanted.input ? grad_input.view() : te::TensorView{};
  args.grad_gamma = wanted.gamma ? grad_gamma.view() : te::TensorView{};
  args.grad_beta = wanted.beta ? grad_beta.view() : te::TensorView{};
  args.grad_residual = wanted.residual ? problem.residual.view() : te::TensorView{};
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
    EXPECT_TRUE(te::testing::all_close(grad_input, expected));
  }
  if (wanted.gamma) {
    EXPECT_TRUE(te::testing::all_close(grad_gamma, expected_gamma));
  }
  if (wanted.beta) {
    EXPECT_TRUE(te::testing::all_close(grad_beta, expected_beta));
  }
}

TEST(NormBackward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const NormKind kind : kKinds) {
    for (const DType dtype : te::testing::kHighPrecision) {
      for (const DType other : te::testing::kHighPrecision) {
        for (const Shape shape : kShapes) {
          SCOPED_TRACE(::testing::Message()
                       << "kind " << static_cast<int>(kind) << " input " << te::dtype_name(dtype)
                       << " other " << te::dtype_name(other) << " shape " << shape.rows << "x"
                       << shape.hidden);
          BackwardProblem uniform(kind, shape, dtype, dtype, dtype, other);
          check_backward(uniform, dtype, {.residual = true}, &te::norm_backward);
          BackwardProblem mixed(kind, shape, dtype, other, dtype, other);
          check_backward(mixed, other, {.residual = shape.rows > 2}, &te::norm_backward);
        }
      }
    }
  }
}

TEST(NormBackward, ManyRowsAndEveryChoiceOfGradients) {
  for (const NormKind kind : kKinds) {
    BackwardProblem problem(kind, {1203, 37}, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16,
                            DType::kFloat32);
    for (int choice = 0; choice < 16; ++choice) {
      SCOPED_TRACE(choice);
      check_backward(problem, DType::kBFloat16,
                     {.input = (choice & 1) != 0,
                      .gamma = (choice & 2) != 0,
                      .beta = (choice & 4) != 0,
                      .residual = (choice & 8) != 0},
                     &te::norm_backward);
    }
  }
}

TEST(NormBackward, TheReferenceMatchesTheFormula) {
  for (const NormKind kind : kKinds) {
    BackwardProblem problem(kind, {6, 65}, DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                            DType::kFloat32);
    check_backward(problem, DType::kFloat32, {.residual = true}, &te::reference::norm_backward);
  }
}

// The loss sum(c * norm(x)) in FP64.
double loss(NormKind kind, const std::vector<double>& x, const std::vector<double>& gain,
            const std::vector<double>& c) {
  const auto n = static_cast<int64_t>(x.size());
  const Statistics statistics = exact_statistics(kind, x.data(), n);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    sum += c[i] * (x[i] - statistics.mean) * statistics.rstd * gain[i];
  }
  return sum;
}

TEST(NormBackward, TheFormulaAgreesWithFiniteDifferences) {
  for (const NormKind kind : kKinds) {
    constexpr int64_t kHidden = 23;
    BackwardProblem problem(kind, {1, kHidden}, DType::kFloat32, DType::kFloat32, DType::kFloat32,
                            DType::kFloat32);
    std::vector<Expected> expected;
    problem.append_grad_input(0, false, &expected);
    std::vector<double> x = te::testing::values_of(problem.forward.input);
    const std::vector<double> c = te::testing::values_of(problem.grad_output);
    std::vector<double> gain(kHidden);
    for (int64_t i = 0; i < kHidden; ++i) {
      gain[i] = problem.forward.gain(i);
    }
    // A central difference errs by O(h^2) and by the rounding of the loss over h; the statistics
    // of the formula are FP32.
    constexpr double kStep = 1e-5;
    for (int64_t i = 0; i < kHidden; ++i) {
      const double at = x[i];
      x[i] = at + kStep;
      const double above = loss(kind, x, gain, c);
      x[i] = at - kStep;
      const double below = loss(kind, x, gain, c);
      x[i] = at;
      EXPECT_NEAR(expected[i].value, (above - below) / (2 * kStep), 32 * kFloatRoundoff);
    }
  }
}

TEST(NormBackward, TheThreadCountDoesNotChangeABit) {
  for (const NormKind kind : kKinds) {
    BackwardProblem problem(kind, {517, 130}, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16,
                            DType::kFloat32);
    Matrix first(DType::kFloat32, 1, 130), first_input(DType::kBFloat16, 517, 130);
    for (const int threads : {1, 2, 3, 8}) {
      Matrix gamma(DType::kFloat32, 1, 130), input(DType::kBFloat16, 517, 130);
      te::NormBackwardArgs args = problem.args();
      args.grad_gamma = threads == 1 ? first.view() : gamma.view();
      args.grad_input = threads == 1 ? first_input.view() : input.view();
      te::norm_backward(args, {.num_threads = threads});
      if (threads > 1) {
        EXPECT_TRUE(te::testing::same_bytes(gamma, first)) << threads;
        EXPECT_TRUE(te::testing::same_bytes(input, first_input)) << threads;
      }
    }
  }
}

TEST(NormBackward, NoRowsGiveZeroWeightGradients) {
  for (const NormKind kind : kKinds) {
    BackwardProblem problem(kind, {0, 19}, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16,
                            DType::kBFloat16);
    check_backward(problem, DType::kBFloat16, {}, &te::norm_backward);
    BackwardProblem no_columns(kind, {19, 0}, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16,
                               DType::kBFloat16);
    check_backward(no_columns, DType::kBFloat16, {.residual = true}, &te::norm_backward);
  }
}

TEST(NormKernels, EveryInstructionSetGivesTheSameBits) {
  const auto tables = TE_TABLES_OF(te::cpu::NormKernels, norm_kernels);
  for (const NormKind kind : kKinds) {
    for (const Shape shape : kShapes) {
      BackwardProblem problem(kind, shape, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16,
                              DType::kFloat32);
      ForwardProblem& forward = problem.forward;
      const auto run = [&](const te::cpu::NormKernels& table, int io, Matrix& output,
                           Matrix& grad_input, Matrix& sums) {
        table.forward[static_cast<int>(kind)][io]({.input = forward.input.view().data,
                                                   .output = output.view().data,
                                                   .input_dtype = DType::kBFloat16,
                                                   .output_dtype = DType::kBFloat16,
                                                   .gain = forward.gamma.data<float>(),
                                                   .beta = forward.beta.data<float>(),
                                                   .mean = nullptr,
                                                   .rstd = nullptr,
                                                   .rows = shape.rows,
                                                   .hidden = shape.hidden,
                                                   .epsilon = 1e-5F});
        table.backward[static_cast<int>(kind)][io]({.grad_output = problem.grad_output.view().data,
                                                    .input = forward.input.view().data,
                                                    .grad_residual = problem.residual.view().data,
                                                    .grad_input = grad_input.view().data,
                                                    .grad_output_dtype = DType::kBFloat16,
                                                    .input_dtype = DType::kBFloat16,
                                                    .grad_residual_dtype = DType::kBFloat16,
                                                    .grad_input_dtype = DType::kBFloat16,
                                                    .gain = forward.gamma.data<float>(),
                                                    .mean = problem.mean.data<float>(),
                                                    .rstd = problem.rstd.data<float>(),
                                                    .gamma_sum = sums.data<float>(),
                                                    .beta_sum = sums.data<float>() + shape.hidden,
                                                    .rows = shape.rows,
                                                    .hidden = shape.hidden});
      };
      const auto zero_sums = [&] {
        Matrix sums(DType::kFloat32, 2, shape.hidden);
        for (int64_t i = 0; i < sums.numel(); ++i) {
          sums.set(i, 0.0F);
        }
        return sums;
      };
      Matrix output(DType::kBFloat16, shape.rows, shape.hidden);
      Matrix grad_input(DType::kBFloat16, shape.rows, shape.hidden);
      Matrix sums = zero_sums();
      run(*tables[0].table, 1, output, grad_input, sums);
      for (const auto& [isa, table] : tables) {
        for (const int io : {1, 3}) {  // BF16 throughout, and the kernel for mixed types
          SCOPED_TRACE(::testing::Message()
                       << isa << " io " << io << " " << shape.rows << "x" << shape.hidden);
          Matrix other_output(DType::kBFloat16, shape.rows, shape.hidden);
          Matrix other_grad_input(DType::kBFloat16, shape.rows, shape.hidden);
          Matrix other_sums = zero_sums();
          run(*table, io, other_output, other_grad_input, other_sums);
          EXPECT_TRUE(te::testing::same_bytes(other_output, output));
          EXPECT_TRUE(te::testing::same_bytes(other_grad_input, grad_input));
          EXPECT_TRUE(te::testing::same_bytes(other_sums, sums));
        }
      }
    }
  }
}

// Runs `change` on valid arguments and expects an error whose message names `name`; nothing may
// have been written.
template <typename Error, typename Change>
void expect_forward_error(const std::string& name, NormKind kind, const Change& change) {
  ForwardProblem problem(kind, {4, 8}, DType::kFloat32, DType::kFloat32, false);
  Matrix output(DType::kFloat32, 4, 8), untouched(DType::kFloat32, 4, 8);
  te::NormForwardArgs args = problem.args(output.view(), nullptr, nullptr);
  change(args);
  try {
    te::norm_forward(args, {});
    ADD_FAILURE() << "no error for " << name;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("norm_forward: " + name), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(te::testing::same_bytes(output, untouched));
}

TEST(NormErrors, ForwardNamesTheArgument) {
  using Args = te::NormForwardArgs;
  const NormKind layer = NormKind::kLayerNorm;
  expect_forward_error<te::ValueError>("kind", layer,
                                       [](Args& a) { a.kind = static_cast<NormKind>(7); });
  expect_forward_error<te::TypeError>("input", layer,
                                      [](Args& a) { a.input.dtype = DType::kByte; });
  expect_forward_error<te::ValueError>("input", layer, [](Args& a) { a.input.data = nullptr; });
  expect_forward_error<te::ValueError>("gamma", layer, [](Args& a) { a.gamma.cols = 7; });
  expect_forward_error<te::ValueError>("beta", layer, [](Args& a) { a.beta = {}; });
  expect_forward_error<te::TypeError>("beta", layer,
                                      [](Args& a) { a.beta.dtype = DType::kBFloat16; });
  expect_forward_error<te::ValueError>("epsilon", layer, [](Args& a) { a.epsilon = -1.0F; });
  expect_forward_error<te::ValueError>("epsilon", layer,
                                       [](Args& a) { a.epsilon = std::nanf(""); });
  expect_forward_error<te::ValueError>("output", layer, [](Args& a) { a.output.rows = 3; });
  expect_forward_error<te::ValueError>("output", layer, [](Args& a) { a.output.data = nullptr; });
  expect_forward_error<te::TypeError>("output", layer,
                                      [](Args& a) { a.output.dtype = DType::kFloat8E4M3; });
  expect_forward_error<te::TypeError>("quantized data", layer,
                                      [](Args& a) { a.quantized.data = a.output; });
  expect_forward_error<te::ValueError>("beta", NormKind::kRMSNorm,
                                       [](Args& a) { a.beta = a.gamma; });
  expect_forward_error<te::ValueError>("mean", NormKind::kRMSNorm, [](Args& a) {
    static float mean[4];
    a.mean = mean;
  });
}

template <typename Error, typename Change>
void expect_backward_error(const std::string& name, NormKind kind, const Change& change) {
  BackwardProblem problem(kind, {4, 8}, DType::kFloat32, DType::kFloat32, DType::kFloat32,
                          DType::kFloat32);
  Matrix grad_input(DType::kFloat32, 4, 8), untouched(DType::kFloat32, 4, 8);
  te::NormBackwardArgs args = problem.args();
  args.grad_input = grad_input.view();
  change(args);
  try {
    te::norm_backward(args, {});
    ADD_FAILURE() << "no error for " << name;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("norm_backward: " + name), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(te::testing::same_bytes(grad_input, untouched));
}

TEST(NormErrors, BackwardNamesTheArgument) {
  using Args = te::NormBackwardArgs;
  const NormKind layer = NormKind::kLayerNorm;
  expect_backward_error<te::ValueError>("grad_output", layer,
                                        [](Args& a) { a.grad_output.rows = 5; });
  expect_backward_error<te::ValueError>("rstd", layer, [](Args& a) { a.rstd = nullptr; });
  expect_backward_error<te::ValueError>("mean", layer, [](Args& a) { a.mean = nullptr; });
  expect_backward_error<te::ValueError>("mean", NormKind::kRMSNorm,
                                        [](Args& a) { a.mean = a.rstd; });
  expect_backward_error<te::ValueError>("grad_beta", NormKind::kRMSNorm,
                                        [](Args& a) { a.grad_beta = a.gamma; });
  expect_backward_error<te::ValueError>("grad_residual", layer,
                                        [](Args& a) { a.grad_residual = a.gamma; });
  expect_backward_error<te::ValueError>("grad_gamma", layer,
                                        [](Args& a) { a.grad_gamma = a.input; });
  expect_backward_error<te::TypeError>("grad_input", layer,
                                       [](Args& a) { a.grad_input.dtype = DType::kInt32; });
}

TEST(NormErrors, AnotherDeviceIsRefusedWithEveryReason) {
  ForwardProblem problem(NormKind::kLayerNorm, {4, 8}, DType::kFloat32, DType::kFloat32, false);
  Matrix output(DType::kFloat32, 4, 8);
  try {
    te::norm_forward(problem.args(output.view(), nullptr, nullptr),
                     {.device = te::DeviceType::kCUDA});
    ADD_FAILURE() << "no error";
  } catch (const te::NotImplementedError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda: "), std::string::npos) << error.what();
  }
}

}  // namespace
