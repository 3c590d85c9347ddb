// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/activation*.cu: results and sums against FP64 formulas with derived bounds,
// copies of results bit for bit against the quantization of the kernel's own result.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/device_mirror.h"
#include "helpers/activation_case.h"
#include "helpers/fused_quantize.h"

namespace {

namespace te = transformer_engine;
using te::ActivationKind;
using te::DType;
using te::testing::ActivationCase;
using te::testing::check_backward;
using te::testing::check_forward;
using te::testing::DeviceMirror;
using te::testing::is_too_large;
using te::testing::kActivationKindCount;
using te::testing::kHighPrecision;
using te::testing::kind_of;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::Matrix;
using te::testing::same_bytes;

// The ops on the device, given arguments in host memory.
void forward_on_device(const te::ActivationForwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::ActivationForwardArgs args = host;
  args.input = mirror.view(host.input);
  args.bias = mirror.view(host.bias);
  args.output = mirror.view(host.output);
  args.quantized = mirror.view(host.quantized);
  args.act_scales = mirror.view(host.act_scales);
  te::activation_forward(args, kOnDevice);
  mirror.download();
}

void backward_on_device(const te::ActivationBackwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::ActivationBackwardArgs args = host;
  args.grad_output = mirror.view(host.grad_output);
  args.input = mirror.view(host.input);
  args.bias = mirror.view(host.bias);
  args.grad_input = mirror.view(host.grad_input);
  args.grad_bias = mirror.view(host.grad_bias);
  args.quantized = mirror.view(host.quantized);
  args.act_scales = mirror.view(host.act_scales);
  args.grad_act_scales = mirror.view(host.grad_act_scales);
  te::activation_backward(args, kOnDevice);
  mirror.download();
}

void bias_gradient_on_device(const te::BiasGradientArgs& host) {
  DeviceMirror mirror;
  const te::BiasGradientArgs args{.grad_output = mirror.view(host.grad_output),
                                  .grad_bias = mirror.view(host.grad_bias),
                                  .quantized = mirror.view(host.quantized)};
  te::bias_gradient(args, kOnDevice);
  mirror.download();
}

// A thread adds up to 8 products of a row, a warp those of its 32 threads by halves. The sums of
// strips of at least 32 columns: every eighth by one thread, then eight.
double row_sum_roundoff(const ActivationCase& problem) {
  const int64_t strips = (problem.cols() + 31) / 32;
  return (1.0 + 7 + 5 + static_cast<double>((strips + 7) / 8) + 7) * te::testing::kFloatRoundoff;
}

// What selects kernels: the kind, and per shape whether vectors fit.
struct Case {
  int64_t rows;
  int64_t cols;
  int64_t interleave;
  bool has_bias;
};
constexpr Case kCases[] = {{1, 1, 1, false},  {5, 17, 0, true},   {3, 64, 16, true},
                           {70, 8, 8, false}, {2, 296, 0, false}, {130, 20, 5, true}};

void check_both(ActivationCase& problem, DType output, DType grad_input) {
  problem.row_sum_roundoff = &row_sum_roundoff;
  check_forward(problem, output, &forward_on_device);
  check_backward(problem, grad_input, &backward_on_device);
}

TEST(CudaActivation, MatchesTheFormulaForEveryKindTypeAndShape) {
  for (int kind = 0; kind < kActivationKindCount; ++kind) {
    for (const DType dtype : kHighPrecision) {
      for (const Case& c : kCases) {
        if (kIsSlowDevice && (c.rows * c.cols > 200 || dtype == DType::kFloat16)) {
          continue;
        }
        SCOPED_TRACE(te::concat("kind ", kind, " ", te::dtype_name(dtype), " ", c.rows, " x ",
                                c.cols, " interleaved by ", c.interleave));
        ActivationCase problem(kind_of(kind), c.rows, c.cols, dtype, dtype, c.has_bias);
        check_both(problem, dtype, dtype);
        problem.has_scales = true;
        problem.interleave = te::is_gated(problem.kind) ? c.interleave : 0;
        check_both(problem, dtype, dtype);
      }
    }
  }
}

TEST(CudaActivation, TakesEveryMixtureOfTypes) {
  for (const ActivationKind kind : {ActivationKind::kSiLU, ActivationKind::kGEGLU}) {
    for (const DType input : kHighPrecision) {
      for (const DType other : kHighPrecision) {
        SCOPED_TRACE(te::concat(te::dtype_name(input), " and ", te::dtype_name(other)));
        ActivationCase problem(kind, 9, 16, input, other, true);
        problem.has_scales = true;
        check_both(problem, other, input);
      }
    }
  }
}

// A matrix whose device copy begins one element later than memory is allocated.
class Shifted {
 public:
  explicit Shifted(Matrix& matrix)
      : matrix_(matrix),
        element_(te::element_size_bytes(matrix.view().dtype)),
        padded_(DType::kByte, 1, static_cast<int64_t>(matrix.size_bytes()) + element_) {
    std::memcpy(begin(), matrix.data<uint8_t>(), matrix.size_bytes());
  }
  te::TensorView view(DeviceMirror& mirror) {
    te::TensorView view = matrix_.view();
    view.data = static_cast<uint8_t*>(mirror.view(padded_).data) + element_;
    return view;
  }
  void copy_back() { std::memcpy(matrix_.data<uint8_t>(), begin(), matrix_.size_bytes()); }

 private:
  uint8_t* begin() { return padded_.data<uint8_t>() + element_; }
  Matrix& matrix_;
  int64_t element_;
  Matrix padded_;
};

// With operand number `shifted` out of place. Bit by bit, alignment changes nothing.
struct Gradients {
  Matrix grad_input, grad_bias, data, data_transpose;

  Gradients(ActivationCase& problem, int shifted, bool has_transpose)
      : grad_input(DType::kBFloat16, problem.input.rows(), problem.input.cols()),
        grad_bias(DType::kFloat32, 1, problem.input.cols()),
        data(DType::kFloat8E5M2, problem.input.rows(), problem.input.cols()),
        data_transpose(DType::kFloat8E5M2, problem.input.cols(), problem.input.rows()) {
    DeviceMirror mirror;
    Matrix* matrices[] = {&problem.input, &problem.bias, &problem.grad_output,
                          &grad_input,    &data,         &data_transpose};
    std::vector<Shifted> copies;
    copies.reserve(std::size(matrices));
    te::TensorView views[std::size(matrices)];
    for (int i = 0; i < static_cast<int>(std::size(matrices)); ++i) {
      copies.emplace_back(*matrices[i]);
      views[i] =
          i == shifted ? copies[static_cast<size_t>(i)].view(mirror) : mirror.view(*matrices[i]);
    }
    te::ActivationBackwardArgs args;
    args.kind = problem.kind;
    args.input = views[0];
    args.bias = views[1];
    args.grad_output = views[2];
    args.grad_input = views[3];
    args.grad_bias = mirror.view(grad_bias);
    args.quantized.data = views[4];
    if (has_transpose) {
      args.grad_input.data = nullptr;  // the transposed copy is computed from the operands
      args.quantized.data_transpose = views[5];
    }
    te::activation_backward(args, kOnDevice);
    mirror.download();
    if (shifted >= 3) {
      copies[static_cast<size_t>(shifted)].copy_back();
    }
  }
};

TEST(CudaActivation, TakesOperandsThatAreNotAligned) {
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU}) {
    for (const bool has_transpose : {false, true}) {
      ActivationCase problem(kind, 16, 16, DType::kBFloat16, DType::kBFloat16, true);
      Gradients expected(problem, -1, has_transpose);
      for (int shifted = 0; shifted < 6; ++shifted) {
        SCOPED_TRACE(te::concat("operand ", shifted, " transpose ", has_transpose));
        Gradients got(problem, shifted, has_transpose);
        EXPECT_TRUE(same_bytes(got.grad_bias, expected.grad_bias));
        EXPECT_TRUE(same_bytes(got.data, expected.data));
        EXPECT_TRUE(same_bytes(has_transpose ? got.data_transpose : got.grad_input,
                               has_transpose ? expected.data_transpose : expected.grad_input));
      }
    }
  }
}

TEST(CudaActivation, EmptyIsOrdinary) {
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{0, 8}, {3, 0}, {0, 0}}) {
      ActivationCase problem(kind, rows, cols, DType::kBFloat16, DType::kBFloat16, true);
      problem.has_scales = true;
      check_both(problem, DType::kBFloat16, DType::kBFloat16);
    }
  }
}

TEST(CudaActivation, TakesTheWholeRangeOfInputs) {
  for (int kind = 0; kind < kActivationKindCount; ++kind) {
    te::testing::check_whole_range(kind_of(kind), &forward_on_device, &backward_on_device);
  }
}

// Some 130 columns of a half, so that tiles and strips have a rest; the same without vectors.
constexpr int64_t kFusedShapes[][2] = {{70, 136}, {17, 33}};

// The ops as helpers/fused_quantize.h calls them.
struct FusedForward {
  ActivationCase& problem;

  void operator()(te::TensorView output, const te::QuantizedOutput& quantized) const {
    te::ActivationForwardArgs args;
    args.kind = problem.kind;
    args.input = problem.input.view();
    args.bias = problem.bias.view();
    args.output = output;
    args.quantized = quantized;
    args.act_scales = problem.act_scales.view();
    args.glu_interleave_size = problem.interleave;
    forward_on_device(args, {});
  }
};

// The sums, where wanted, are those of the first call.
class FusedBackward {
 public:
  FusedBackward(ActivationCase& problem, bool has_bias_sums, bool has_scale_sums)
      : problem_(problem), has_bias_sums_(has_bias_sums), has_scale_sums_(has_scale_sums) {}

  void operator()(te::TensorView grad_input, const te::QuantizedOutput& quantized) const {
    Matrix grad_bias(DType::kFloat32, 1, problem_.input.cols());
    Matrix grad_scales(DType::kBFloat16, 1, problem_.input.rows());
    te::ActivationBackwardArgs args;
    args.kind = problem_.kind;
    args.grad_output = problem_.grad_output.view();
    args.input = problem_.input.view();
    args.bias = problem_.bias.view();
    args.grad_input = grad_input;
    args.grad_bias = has_bias_sums_ ? grad_bias.view() : te::TensorView{};
    args.quantized = quantized;
    args.act_scales = problem_.act_scales.view();
    args.grad_act_scales = has_scale_sums_ ? grad_scales.view() : te::TensorView{};
    args.glu_interleave_size = problem_.interleave;
    backward_on_device(args, {});
    if (expected_.empty()) {
      expected_.push_back(std::move(grad_bias));
      expected_.push_back(std::move(grad_scales));
    } else {
      EXPECT_TRUE(same_bytes(grad_bias, expected_[0]));
      EXPECT_TRUE(same_bytes(grad_scales, expected_[1]));
    }
  }

 private:
  ActivationCase& problem_;
  bool has_bias_sums_;
  bool has_scale_sums_;
  mutable std::vector<Matrix> expected_;
};

TEST(CudaActivation, CopiesAreThoseOfASeparateQuantization) {
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const auto& [rows, cols] : kFusedShapes) {
        if (is_too_large(rows * cols)) {
          continue;
        }
        SCOPED_TRACE(te::concat(te::dtype_name(dtype), " ", rows, " x ", cols));
        ActivationCase problem(kind, rows, cols, dtype, dtype, true);
        te::testing::expect_fused_equals_separate(dtype, rows, cols, FusedForward{problem});
        te::testing::expect_fused_equals_separate(dtype, rows, problem.input.cols(),
                                                  FusedBackward(problem, false, rows % 2 == 0));
      }
    }
  }
}

// Tiles with a rest in either direction, with and without vectors; no rows, no columns.
struct BlockShape {
  int64_t rows;
  int64_t cols;
  DType dtype;
};
constexpr BlockShape kBlockShapes[] = {{33, 136, DType::kBFloat16}, {17, 33, DType::kFloat16},
                                       {17, 40, DType::kFloat32},   {130, 8, DType::kBFloat16},
                                       {0, 8, DType::kBFloat16},    {3, 0, DType::kBFloat16}};

void expect_blocks(ActivationCase& problem, DType dtype, bool has_bias_sums, bool has_scale_sums) {
  SCOPED_TRACE(te::concat("kind ", static_cast<int>(problem.kind), " sums of columns ",
                          has_bias_sums, " rows ", has_scale_sums));
  te::testing::expect_fused_blocks_equal_separate(
      dtype, problem.input.rows(), problem.input.cols(),
      FusedBackward(problem, has_bias_sums, has_scale_sums));
}

TEST(CudaActivation, BlockCopiesAreThoseOfASeparateQuantization) {
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU}) {
    for (const auto& [rows, cols, dtype] : kBlockShapes) {
      if (kIsSlowDevice && rows * cols > 600) {
        continue;
      }
      SCOPED_TRACE(te::concat(te::dtype_name(dtype), " ", rows, " x ", cols));
      ActivationCase problem(kind, rows, cols, dtype, dtype, true);
      te::testing::expect_fused_blocks_equal_separate(dtype, rows, cols, FusedForward{problem});
      expect_blocks(problem, dtype, false, false);
      expect_blocks(problem, dtype, true, false);
      expect_blocks(problem, dtype, false, true);
    }
  }
}

TEST(CudaActivation, BlockCopiesOfEveryKindAndOfMixedTypes) {
  constexpr int64_t kRows = 18;
  constexpr int64_t kCols = 24;
  for (int kind = 0; kind < kActivationKindCount; ++kind) {
    const DType input = kind % 2 == 0 ? DType::kFloat16 : DType::kBFloat16;
    ActivationCase problem(kind_of(kind), kRows, kCols, input, DType::kBFloat16, true);
    problem.interleave = te::is_gated(problem.kind) ? 8 : 0;
    te::testing::expect_fused_blocks_equal_separate(DType::kBFloat16, kRows, kCols,
                                                    FusedForward{problem});
    expect_blocks(problem, DType::kBFloat16, false, false);
  }
}

// Two runs give the same bits, and so does another order of blocks (CUDA_EMULATOR_ORDER).
TEST(CudaActivation, SumsAreTheSameInEveryRun) {
  ActivationCase problem(ActivationKind::kSwiGLU, kIsSlowDevice ? 12 : 200, 40, DType::kBFloat16,
                         DType::kBFloat16, false);
  Gradients first(problem, -1, false);
  Gradients second(problem, -1, false);
  EXPECT_TRUE(same_bytes(second.grad_bias, first.grad_bias));
}

TEST(CudaBiasGradient, SumsRowsForEveryTypeAndShape) {
  for (const DType input : kHighPrecision) {
    for (const DType output : kHighPrecision) {
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{0, 5}, {4, 0}, {1, 1}, {7, 33}, {700, 16}, {65, 264}}) {
        if (is_too_large(rows * cols)) {
          continue;
        }
        SCOPED_TRACE(te::concat(te::dtype_name(input), " ", rows, " x ", cols));
        Matrix grad_output(input, rows, cols);
        te::testing::fill_normal(grad_output, 9);
        Matrix grad_bias(output, 1, cols);
        bias_gradient_on_device(
            {.grad_output = grad_output.view(), .grad_bias = grad_bias.view(), .quantized = {}});
        EXPECT_TRUE(te::testing::all_close(grad_bias, te::testing::column_sums(grad_output)));
      }
    }
  }
}

TEST(CudaBiasGradient, QuantizesWhatItReads) {
  for (const auto& [rows, cols] : kFusedShapes) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (is_too_large(rows * cols)) {
        continue;
      }
      Matrix grad_output(DType::kBFloat16, rows, cols);
      te::testing::fill_normal(grad_output, 9);
      Matrix grad_bias(DType::kFloat32, 1, cols);
      for (const bool has_transpose : {false, true}) {
        te::testing::QuantizedBuffers expected(format, rows, cols), got(format, rows, cols);
        te::quantize({.input = grad_output.view(),
                      .output = expected.output(true, has_transpose),
                      .noop = nullptr},
                     {});
        bias_gradient_on_device({.grad_output = grad_output.view(),
                                 .grad_bias = grad_bias.view(),
                                 .quantized = got.output(true, has_transpose)});
        EXPECT_TRUE(same_bytes(got.data, expected.data));
        EXPECT_TRUE(same_bytes(got.data_transpose, expected.data_transpose));
        EXPECT_EQ(got.amax, expected.amax);
        EXPECT_EQ(got.scale_inv, expected.scale_inv);
        EXPECT_TRUE(te::testing::all_close(grad_bias, te::testing::column_sums(grad_output)));
      }
    }
  }
}

TEST(CudaBiasGradient, QuantizesWhatItReadsInBlocks) {
  for (const auto& [rows, cols, dtype] : kBlockShapes) {
    if (is_too_large(rows * cols)) {
      continue;
    }
    Matrix grad_output(dtype, rows, cols);
    te::testing::fill_normal(grad_output, 9);
    for (const te::testing::BlockPlan& plan : te::testing::kBlockPlans) {
      SCOPED_TRACE(te::concat(plan.name, " ", rows, " x ", cols));
      te::testing::BlockCopies expected = te::testing::quantize_separately(plan, grad_output);
      for (const bool with_columnwise : {false, true}) {
        te::testing::BlockCopies got(plan, rows, cols);
        Matrix grad_bias(DType::kFloat32, 1, cols);
        bias_gradient_on_device({.grad_output = grad_output.view(),
                                 .grad_bias = grad_bias.view(),
                                 .quantized = got.output(plan, true, with_columnwise)});
        EXPECT_TRUE(same_copy(got.rowwise, expected.rowwise));
        EXPECT_TRUE(!with_columnwise || same_copy(got.columnwise, expected.columnwise));
        EXPECT_TRUE(te::testing::all_close(grad_bias, te::testing::column_sums(grad_output)));
      }
    }
  }
}

}  // namespace
