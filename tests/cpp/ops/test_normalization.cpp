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
#include "helpers/fused_quantize.h"
#include "helpers/isas.h"
#include "helpers/norm_problem.h"
#include "reference/normalization.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::NormKind;
using te::testing::check_norm_backward;
using te::testing::check_norm_forward;
using te::testing::exact_statistics;
using te::testing::Expected;
using te::testing::kFloatRoundoff;
using te::testing::Matrix;
using ForwardProblem = te::testing::NormForwardProblem;
using BackwardProblem = te::testing::NormBackwardProblem;
using Shape = te::testing::NormShape;
using Statistics = te::testing::ExactStatistics;

constexpr NormKind kKinds[] = {NormKind::kLayerNorm, NormKind::kRMSNorm};

const Shape kShapes[] = {{1, 1}, {3, 7}, {5, 64}, {2, 1000}, {18, 129}, {4, 4099}};

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
            check_norm_forward(problem, output, &te::norm_forward);
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
      check_norm_forward(problem, DType::kFloat32, &te::reference::norm_forward);
    }
  }
}

TEST(NormForward, KeepsTheVarianceOfRowsFarFromZero) {
  // E[x^2] - mean^2 in FP32 has no correct digit here: 1e8 +- 1.
  ForwardProblem problem(NormKind::kLayerNorm, {4, 1000}, DType::kFloat32, DType::kFloat32, false);
  te::testing::fill_normal(problem.input, 5, 1e4F, 1.0F);
  check_norm_forward(problem, DType::kFloat32, &te::norm_forward);
}

TEST(NormForward, AcceptsConstantAndTinyRows) {
  for (const NormKind kind : kKinds) {
    for (const float value : {0.0F, 0.1F, -1e4F, 0x1p-140F}) {
      SCOPED_TRACE(value);
      ForwardProblem problem(kind, {2, 77}, DType::kFloat32, DType::kFloat32, false);
      for (int64_t i = 0; i < problem.input.numel(); ++i) {
        problem.input.set(i, value);
      }
      check_norm_forward(problem, DType::kFloat32, &te::norm_forward);
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
          check_norm_backward(uniform, dtype, {.residual = true}, &te::norm_backward);
          BackwardProblem mixed(kind, shape, dtype, other, dtype, other);
          check_norm_backward(mixed, other, {.residual = shape.rows > 2}, &te::norm_backward);
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
      check_norm_backward(problem, DType::kBFloat16,
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
    check_norm_backward(problem, DType::kFloat32, {.residual = true},
                        &te::reference::norm_backward);
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
    check_norm_backward(problem, DType::kBFloat16, {}, &te::norm_backward);
    BackwardProblem no_columns(kind, {19, 0}, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16,
                               DType::kBFloat16);
    check_norm_backward(no_columns, DType::kBFloat16, {.residual = true}, &te::norm_backward);
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
