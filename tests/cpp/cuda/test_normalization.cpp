// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/normalization.cu and cuda/normalization_backward.cu against the FP64 formula
// with derived bounds, and their FP8 copies against a separate quantization, bit for bit.
#include <gtest/gtest.h>
#include <transformer_engine/framework.h>
#include <transformer_engine/normalization.h>

#include <cmath>

#include "cuda/device_mirror.h"
#include "helpers/fused_quantize.h"
#include "helpers/norm_problem.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::NormKind;
using te::testing::DeviceMirror;
using te::testing::kHighPrecision;
using te::testing::kOnDevice;
using te::testing::Matrix;
using ForwardProblem = te::testing::NormForwardProblem;
using BackwardProblem = te::testing::NormBackwardProblem;
using Shape = te::testing::NormShape;

constexpr NormKind kKinds[] = {NormKind::kLayerNorm, NormKind::kRMSNorm};
// Runs of a vector, in the 32 or more threads that have a row.
constexpr te::testing::SumOrder kDeviceOrder{.lanes = 32, .run = 8};
// One column, a rest after vectors (the kernels for any rows), a warp's rows with and without idle
// lanes and groups.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {5, 129}, {5, 64}, {6, 256}, {2, 1000}};
// Rows of each size of block, one element short of a vector and beyond what registers hold. Few and
// fast enough for the race detector.
constexpr Shape kLongShapes[] = {{3, 1032}, {2, 4096}, {2, 5000}, {2, 8192},
                                 {2, 8200}, {1, 9001}, {2, 16392}};

// The ops with their arguments copied to the device, and the results back.
void forward_on_device(const te::NormForwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::NormForwardArgs args = host;
  args.input = mirror.view(host.input);
  args.gamma = mirror.view(host.gamma);
  args.beta = mirror.view(host.beta);
  args.output = host.output.data != nullptr ? mirror.view(host.output) : host.output;
  args.mean = mirror.pointer(host.mean, static_cast<size_t>(host.input.rows));
  args.rstd = mirror.pointer(host.rstd, static_cast<size_t>(host.input.rows));
  args.quantized = mirror.view(host.quantized);
  te::norm_forward(args, kOnDevice);
  mirror.download();
}

void backward_on_device(const te::NormBackwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::NormBackwardArgs args = host;
  args.grad_output = mirror.view(host.grad_output);
  args.input = mirror.view(host.input);
  args.gamma = mirror.view(host.gamma);
  args.mean = mirror.pointer(host.mean, static_cast<size_t>(host.input.rows));
  args.rstd = mirror.pointer(host.rstd, static_cast<size_t>(host.input.rows));
  args.grad_residual = mirror.view(host.grad_residual);
  args.grad_input = mirror.view(host.grad_input);
  args.grad_gamma = mirror.view(host.grad_gamma);
  args.grad_beta = mirror.view(host.grad_beta);
  te::norm_backward(args, kOnDevice);
  mirror.download();
}

ForwardProblem forward_problem(NormKind kind, Shape shape, DType input, DType gamma) {
  ForwardProblem problem(kind, shape, input, gamma, shape.rows % 2 == 0);
  problem.order = kDeviceOrder;
  return problem;
}

BackwardProblem backward_problem(NormKind kind, Shape shape, DType input, DType grad_output,
                                 DType gamma) {
  BackwardProblem problem(kind, shape, input, grad_output, input, gamma);
  problem.order = kDeviceOrder;
  return problem;
}

// One choice of the other types for each input type in turn, where all are too many.
DType other_type(DType dtype) {
  return dtype == DType::kFloat32    ? DType::kBFloat16
         : dtype == DType::kBFloat16 ? DType::kFloat16
                                     : DType::kFloat32;
}

TEST(CudaNormForward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const NormKind kind : kKinds) {
    for (const DType input : kHighPrecision) {
      for (const DType gamma : kHighPrecision) {
        for (const DType output : kHighPrecision) {
          for (const Shape shape : kShapes) {
            if (te::testing::kIsSlowDevice && (gamma != input || output != input)) {
              continue;
            }
            SCOPED_TRACE(::testing::Message()
                         << "kind " << static_cast<int>(kind) << " input " << te::dtype_name(input)
                         << " gamma " << te::dtype_name(gamma) << " output "
                         << te::dtype_name(output) << " " << shape.rows << " x " << shape.hidden);
            ForwardProblem problem = forward_problem(kind, shape, input, gamma);
            te::testing::check_norm_forward(problem, output, &forward_on_device);
          }
        }
      }
    }
  }
}

TEST(CudaNormForward, MatchesTheFormulaForLongRows) {
  for (const NormKind kind : kKinds) {
    for (const DType dtype : kHighPrecision) {
      for (const Shape shape : kLongShapes) {
        if (te::testing::kIsSlowDevice && dtype != DType::kBFloat16) {
          continue;
        }
        SCOPED_TRACE(::testing::Message() << te::dtype_name(dtype) << " " << shape.hidden);
        ForwardProblem problem = forward_problem(kind, shape, dtype, other_type(dtype));
        te::testing::check_norm_forward(problem, other_type(dtype), &forward_on_device);
      }
    }
  }
}

TEST(CudaNormForward, KeepsTheVarianceOfRowsFarFromZero) {
  for (const int64_t hidden : {1000, 1001, 3000}) {
    ForwardProblem problem =
        forward_problem(NormKind::kLayerNorm, {4, hidden}, DType::kFloat32, DType::kFloat32);
    te::testing::fill_normal(problem.input, 5, 1e4F, 1.0F);
    te::testing::check_norm_forward(problem, DType::kFloat32, &forward_on_device);
  }
}

TEST(CudaNormForward, AcceptsConstantAndTinyRows) {
  for (const NormKind kind : kKinds) {
    for (const float value : {0.0F, 0.1F, -1e4F, 0x1p-140F}) {
      for (const int64_t hidden : {77, 80}) {
        SCOPED_TRACE(value);
        ForwardProblem problem =
            forward_problem(kind, {2, hidden}, DType::kFloat32, DType::kFloat32);
        for (int64_t i = 0; i < problem.input.numel(); ++i) {
          problem.input.set(i, value);
        }
        te::testing::check_norm_forward(problem, DType::kFloat32, &forward_on_device);
      }
    }
  }
}

TEST(CudaNormForward, InfAndNaNStayInTheirRow) {
  for (const NormKind kind : kKinds) {
    for (const int64_t hidden : {70, 72}) {
      for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
        ForwardProblem problem =
            forward_problem(kind, {3, hidden}, DType::kBFloat16, DType::kFloat32);
        Matrix clean(DType::kBFloat16, 3, hidden), output(DType::kBFloat16, 3, hidden);
        forward_on_device(problem.args(clean.view(), nullptr, nullptr), {});
        problem.input.set(hidden + 69, bad);
        forward_on_device(problem.args(output.view(), nullptr, nullptr), {});
        for (int64_t i = 0; i < hidden; ++i) {
          EXPECT_EQ(output.get(i), clean.get(i));
          EXPECT_EQ(output.get(2 * hidden + i), clean.get(2 * hidden + i));
        }
        EXPECT_TRUE(std::isnan(output.get(hidden + 69)));
      }
    }
  }
}

TEST(CudaNormForward, EmptyWritesTheStatisticsAndTheScaleAlone) {
  for (const NormKind kind : kKinds) {
    for (const Shape shape : {Shape{0, 8}, Shape{3, 0}}) {
      ForwardProblem problem = forward_problem(kind, shape, DType::kFloat32, DType::kFloat32);
      Matrix output(DType::kFloat32, shape.rows, shape.hidden), rstd(DType::kFloat32, 1, 3);
      te::testing::QuantizedBuffers buffers(DType::kFloat8E4M3, shape.rows, shape.hidden);
      te::NormForwardArgs args = problem.args(output.view(), nullptr, rstd.data<float>());
      args.quantized = buffers.output(true, true);
      forward_on_device(args, {});
      EXPECT_EQ(buffers.scale_inv, 1.0F / buffers.scale);
      EXPECT_EQ(buffers.amax, 0.125F);
      for (int64_t row = 0; row < shape.rows; ++row) {
        EXPECT_EQ(rstd.data<float>()[row],
                  1.0F / std::sqrt(static_cast<float>(te::testing::kNormEpsilon)));
      }
    }
  }
}

// Of rows in registers and of any rows, and of both with unaligned FP8 copies.
TEST(CudaNormForward, FusedQuantizationEqualsASeparateOne) {
  for (const NormKind kind : kKinds) {
    for (const DType dtype : kHighPrecision) {
      for (const Shape shape : {Shape{18, 136}, Shape{9, 301}, Shape{2, 1032}}) {
        if (te::testing::kIsSlowDevice && (dtype != DType::kBFloat16 || shape.rows > 10)) {
          continue;
        }
        ForwardProblem problem = forward_problem(kind, shape, DType::kBFloat16, DType::kFloat32);
        te::testing::expect_fused_equals_separate(
            dtype, shape.rows, shape.hidden,
            [&](te::TensorView output, const te::QuantizedOutput& quantized) {
              te::NormForwardArgs args = problem.args(output, nullptr, nullptr);
              args.quantized = quantized;
              forward_on_device(args, {});
            });
      }
    }
  }
}

TEST(CudaNormForward, FusedBlockQuantizationEqualsASeparateOne) {
  for (const NormKind kind : kKinds) {
    const Shape shape = te::testing::kIsSlowDevice ? Shape{32, 64} : Shape{64, 288};
    ForwardProblem problem = forward_problem(kind, shape, DType::kBFloat16, DType::kFloat32);
    te::testing::expect_fused_blocks_equal_separate(
        DType::kBFloat16, shape.rows, shape.hidden,
        [&](te::TensorView output, const te::QuantizedOutput& quantized) {
          te::NormForwardArgs args = problem.args(output, nullptr, nullptr);
          args.quantized = quantized;
          forward_on_device(args, {});
        });
  }
}

TEST(CudaNormBackward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const NormKind kind : kKinds) {
    for (const DType dtype : kHighPrecision) {
      for (const DType other : kHighPrecision) {
        for (const Shape shape : kShapes) {
          if (te::testing::kIsSlowDevice && other != DType::kBFloat16) {
            continue;
          }
          SCOPED_TRACE(::testing::Message()
                       << "kind " << static_cast<int>(kind) << " input " << te::dtype_name(dtype)
                       << " other " << te::dtype_name(other) << " " << shape.rows << " x "
                       << shape.hidden);
          BackwardProblem uniform = backward_problem(kind, shape, dtype, dtype, other);
          te::testing::check_norm_backward(uniform, dtype, {.residual = true}, &backward_on_device);
          BackwardProblem mixed = backward_problem(kind, shape, dtype, other, other);
          te::testing::check_norm_backward(mixed, other, {.residual = shape.rows > 2},
                                           &backward_on_device);
        }
      }
    }
  }
}

TEST(CudaNormBackward, MatchesTheFormulaForLongRows) {
  for (const NormKind kind : kKinds) {
    for (const DType dtype : kHighPrecision) {
      for (const Shape shape : kLongShapes) {
        if (te::testing::kIsSlowDevice && dtype != DType::kBFloat16) {
          continue;
        }
        SCOPED_TRACE(::testing::Message() << te::dtype_name(dtype) << " " << shape.hidden);
        BackwardProblem problem = backward_problem(kind, shape, dtype, dtype, other_type(dtype));
        const bool with_weights = !te::testing::kIsSlowDevice || shape.hidden <= 1032;
        te::testing::check_norm_backward(
            problem, dtype, {.gamma = with_weights, .beta = with_weights}, &backward_on_device);
      }
    }
  }
}

// More rows than blocks, of both kinds of kernels; a block's row may be its last.
TEST(CudaNormBackward, ManyRowsAndEveryChoiceOfGradients) {
  for (const NormKind kind : kKinds) {
    for (const int64_t hidden : {37, 40}) {
      const int64_t rows = te::testing::kIsSlowDevice ? 71 : 301;
      BackwardProblem problem = backward_problem(kind, {rows, hidden}, DType::kBFloat16,
                                                 DType::kBFloat16, DType::kFloat32);
      for (int choice = 0; choice < 16; choice += te::testing::kIsSlowDevice ? 5 : 1) {
        SCOPED_TRACE(choice);
        te::testing::check_norm_backward(problem, DType::kBFloat16,
                                         {.input = (choice & 1) != 0,
                                          .gamma = (choice & 2) != 0,
                                          .beta = (choice & 4) != 0,
                                          .residual = (choice & 8) != 0},
                                         &backward_on_device);
      }
    }
  }
}

TEST(CudaNormBackward, NoRowsGiveZeroWeightGradients) {
  for (const NormKind kind : kKinds) {
    for (const Shape shape : {Shape{0, 19}, Shape{0, 24}, Shape{19, 0}}) {
      BackwardProblem problem =
          backward_problem(kind, shape, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16);
      te::testing::check_norm_backward(problem, DType::kBFloat16, {}, &backward_on_device);
    }
  }
}

// Memory lent by a framework: every piece comes back once.
int live_pieces = 0;
int lent_pieces = 0;
void* lend(size_t bytes, const te::Context& context) {
  EXPECT_EQ(context.device, te::DeviceType::kCUDA);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
  ++live_pieces;
  ++lent_pieces;
  return data;
}
void take_back(void* data, const te::Context&) {
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  --live_pieces;
}

TEST(CudaNormBackward, TakesItsWorkspaceFromTheFramework) {
  const te::FrameworkFunctions before = te::framework_functions();
  te::FrameworkFunctions lending = before;
  lending.allocate_device = &lend;
  lending.free_device = &take_back;
  te::register_framework_functions(lending);
  BackwardProblem problem = backward_problem(NormKind::kLayerNorm, {9, 40}, DType::kBFloat16,
                                             DType::kBFloat16, DType::kFloat32);
  te::testing::check_norm_backward(problem, DType::kBFloat16, {}, &backward_on_device);
  te::register_framework_functions(before);
  EXPECT_EQ(lent_pieces, 1);
  EXPECT_EQ(live_pieces, 0);
}

}  // namespace
