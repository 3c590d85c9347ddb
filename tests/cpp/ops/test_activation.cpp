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
#include "helpers/activation_case.h"
#include "helpers/fused_quantize.h"
#include "helpers/isas.h"
#include "reference/activation.h"

namespace {

namespace te = transformer_engine;
using te::ActivationKind;
using te::DType;
using te::testing::Expected;
using te::testing::Matrix;

using te::testing::check_backward;
using te::testing::check_forward;
using te::testing::gate;
using te::testing::gate_slope;
using te::testing::kind_of;
using te::testing::plain_function;
using te::testing::plain_slope;
using Problem = te::testing::ActivationCase;

constexpr int kKindCount = te::testing::kActivationKindCount;
static_assert(kKindCount == te::cpu::kActivationCount);
const te::ActivationParams& kParams = te::testing::kActivationParams;

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

TEST(Activation, RowScalesMatchTheFormulaForEveryKindTypeAndShape) {
  struct Case {
    Shape shape;
    int64_t interleave;
  };
  for (int index = 0; index < kKindCount; ++index) {
    for (const DType input : te::testing::kHighPrecision) {
      for (const DType other : te::testing::kHighPrecision) {
        for (const Case& c :
             {Case{{5, 1}, 1}, Case{{3, 17}, 0}, Case{{34, 96}, 32}, Case{{6, 70}, 5},
              Case{{3, 1030}, 206}, Case{{0, 8}, 4}, Case{{3, 0}, 4}}) {
          SCOPED_TRACE(::testing::Message()
                       << "kind " << index << " input " << te::dtype_name(input) << " other "
                       << te::dtype_name(other) << " shape " << c.shape.rows << "x"
                       << c.shape.cols);
          Problem problem(kind_of(index), c.shape.rows, c.shape.cols, input, other,
                          c.shape.rows % 2 == 1);
          problem.has_scales = true;
          problem.interleave = te::is_gated(problem.kind) ? c.interleave : 0;
          check_forward(problem, other, &te::activation_forward);
          check_backward(problem, input, &te::activation_backward);
          if (c.shape.rows * c.shape.cols < 500) {
            check_forward(problem, other, &te::reference::activation_forward);
            check_backward(problem, input, &te::reference::activation_backward);
          }
        }
      }
    }
  }
}

TEST(Activation, ScaleGradientsAreAsGoodWithoutScales) {
  Problem problem(ActivationKind::kSwiGLU, 20, 70, DType::kBFloat16, DType::kBFloat16, false);
  Matrix grad_input(DType::kBFloat16, 20, 140), grad_scales(DType::kFloat32, 1, 20);
  te::activation_backward({.kind = problem.kind,
                           .params = kParams,
                           .grad_output = problem.grad_output.view(),
                           .input = problem.input.view(),
                           .bias = {},
                           .grad_input = grad_input.view(),
                           .grad_bias = {},
                           .quantized = {},
                           .act_scales = {},
                           .grad_act_scales = grad_scales.view()},
                          {});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < 20; ++row) {
    expected.push_back(problem.grad_act_scale(row));
  }
  EXPECT_TRUE(te::testing::all_close(grad_scales, expected));
}

TEST(Activation, WholeRangeOfInputs) {
  for (int index = 0; index < kKindCount; ++index) {
    te::testing::check_whole_range(kind_of(index), &te::activation_forward,
                                   &te::activation_backward);
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
                            .quantized = {},
                            .act_scales = {}},
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
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU,
                                    ActivationKind::kClampedSwiGLU, ActivationKind::kSiTUGLU}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Problem problem(kind, 70, 301, dtype, dtype, true);
      te::testing::expect_fused_equals_separate(
          dtype, 70, 301, [&](te::TensorView output, const te::QuantizedOutput& quantized) {
            te::activation_forward({.kind = kind,
                                    .params = kParams,
                                    .input = problem.input.view(),
                                    .bias = problem.bias.view(),
                                    .output = output,
                                    .quantized = quantized,
                                    .act_scales = problem.act_scales.view()},
                                   {.num_threads = 2});
          });
      Matrix grad_bias(DType::kFloat32, 1, problem.input.cols());
      Matrix grad_scales(DType::kBFloat16, 1, 70);
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
                                     .quantized = quantized,
                                     .act_scales = problem.act_scales.view(),
                                     .grad_act_scales = grad_scales.view()},
                                    {.num_threads = 2});
          });
    }
  }
}

using BackwardKernel = void (*)(const te::cpu::ActivationBackwardRows&);

// The kernel of each instruction set.
std::vector<BackwardKernel> backward_kernels(int kind, int io) {
  std::vector<BackwardKernel> kernels;
  if (te::is_gated(kind_of(kind))) {
    for (const auto& named :
         TE_TABLES_OF(te::cpu::GatedActivationBackwardKernels, gated_activation_backward_kernels)) {
      kernels.push_back(named.table->run[kind - te::cpu::kPlainActivationCount][io]);
    }
  } else {
    for (const auto& named :
         TE_TABLES_OF(te::cpu::PlainActivationBackwardKernels, plain_activation_backward_kernels)) {
      kernels.push_back(named.table->run[kind][io]);
    }
  }
  return kernels;
}

constexpr int64_t kRows = 3;
constexpr int64_t kCols = 133;

// What the kernels of one instruction set make of an FP32 problem.
struct KernelResults {
  Matrix output{DType::kFloat32, kRows, kCols};
  Matrix grad_input;
  Matrix grad_scales{DType::kFloat32, 1, kRows};

  KernelResults(Problem& problem, void (*forward)(const te::cpu::ActivationForwardRows&),
                BackwardKernel backward)
      : grad_input(DType::kFloat32, kRows, problem.input.cols()) {
    const float* scales =
        problem.has_scales ? static_cast<const float*>(problem.act_scales.view().data) : nullptr;
    forward({.input = problem.input.view().data,
             .bias = nullptr,
             .act_scales = scales,
             .output = output.view().data,
             .input_dtype = DType::kFloat32,
             .output_dtype = DType::kFloat32,
             .rows = kRows,
             .cols = kCols,
             .glu_interleave_size = problem.interleave,
             .params = kParams});
    backward({.grad_output = problem.grad_output.view().data,
              .input = problem.input.view().data,
              .bias = nullptr,
              .act_scales = scales,
              .grad_input = grad_input.view().data,
              .bias_sum = nullptr,
              .grad_act_scales = problem.has_scales ? grad_scales.data<float>() : nullptr,
              .grad_output_dtype = DType::kFloat32,
              .input_dtype = DType::kFloat32,
              .grad_input_dtype = DType::kFloat32,
              .rows = kRows,
              .cols = kCols,
              .glu_interleave_size = problem.interleave,
              .params = kParams});
  }
};

void expect_equal_bits(Problem& problem, int kind) {
  const auto forward = TE_TABLES_OF(te::cpu::ActivationForwardKernels, activation_forward_kernels);
  std::vector<KernelResults> results;
  for (const int io : {0, 3}) {  // FP32 throughout, and the kernel for mixed types
    const auto backward = backward_kernels(kind, io);
    for (size_t isa = 0; isa < forward.size(); ++isa) {
      results.emplace_back(problem, forward[isa].table->run[kind][io], backward[isa]);
      EXPECT_TRUE(te::testing::same_bytes(results.back().output, results[0].output))
          << forward[isa].isa << " " << kind;
      EXPECT_TRUE(te::testing::same_bytes(results.back().grad_input, results[0].grad_input))
          << forward[isa].isa << " " << kind;
      EXPECT_TRUE(te::testing::same_bytes(results.back().grad_scales, results[0].grad_scales))
          << forward[isa].isa << " " << kind;
    }
  }
}

TEST(ActivationKernels, EveryInstructionSetGivesTheSameBits) {
  for (int index = 0; index < kKindCount; ++index) {
    Problem problem(kind_of(index), kRows, kCols, DType::kFloat32, DType::kFloat32, false);
    expect_equal_bits(problem, index);
    problem.has_scales = true;
    expect_equal_bits(problem, index);
    problem.interleave = te::is_gated(problem.kind) ? 19 : 0;
    expect_equal_bits(problem, index);
  }
}

using BiasFunction = void (*)(const te::BiasGradientArgs&, const te::Context&);

void check_bias_gradient(Matrix& grad_output, DType dtype, BiasFunction run) {
  Matrix grad_bias(dtype, 1, grad_output.cols());
  run({.grad_output = grad_output.view(), .grad_bias = grad_bias.view(), .quantized = {}},
      {.num_threads = 2});
  EXPECT_TRUE(te::testing::all_close(grad_bias, te::testing::column_sums(grad_output)));
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
    forward([](Args& a) { a.kind = static_cast<ActivationKind>(13); });
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
  for (const char* name : {"beta1", "beta2"}) {
    for (const float value : {0.0F, -1.0F, HUGE_VALF, std::nanf("")}) {
      expect_error<te::ValueError>(std::string("activation_forward: ") + name, [&] {
        forward([&](Args& a) {
          a.kind = ActivationKind::kSiTUGLU;
          a.output = half.view();
          (name[4] == '1' ? a.params.beta1 : a.params.beta2) = value;
        });
      });
    }
  }
  expect_error<te::ValueError>("activation_forward: act_scales", [&] {
    forward([&](Args& a) { a.act_scales = bias.view(); });  // 6 scales for 4 rows
  });
  expect_error<te::TypeError>("activation_forward: act_scales", [&] {
    forward([&](Args& a) {
      a.act_scales = bias.view();
      a.act_scales.cols = 4;
      a.act_scales.dtype = DType::kInt64;
    });
  });
  expect_error<te::ValueError>("activation_forward: glu_interleave_size", [&] {
    forward([](Args& a) { a.glu_interleave_size = 2; });  // gelu has no halves
  });
  for (const int64_t size : {int64_t{2}, int64_t{-1}}) {
    expect_error<te::ValueError>("activation_forward: glu_interleave_size", [&] {
      forward([&](Args& a) {
        a.kind = ActivationKind::kSwiGLU;
        a.output = half.view();
        a.glu_interleave_size = size;
      });
    });
  }
  expect_error<te::ValueError>("activation_backward: grad_act_scales", [&] {
    te::ActivationBackwardArgs args;
    args.input = input.view();
    args.grad_output = input.view();
    args.grad_input = output.view();
    args.grad_act_scales = bias.view();
    te::activation_backward(args, {});
  });
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
