// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/softmax.cu against the FP64 formula with derived bounds.
#include <gtest/gtest.h>
#include <transformer_engine/softmax.h>

#include <cmath>

#include "cuda/device_mirror.h"
#include "helpers/softmax_problem.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::SoftmaxMask;
using te::testing::DeviceMirror;
using te::testing::kHighPrecision;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::Matrix;
using Problem = te::testing::SoftmaxProblem;
using Shape = te::testing::SoftmaxShape;

constexpr SoftmaxMask kMasks[] = {SoftmaxMask::kNone, SoftmaxMask::kPadding, SoftmaxMask::kCausal,
                                  SoftmaxMask::kCausalAligned};
// Runs of a vector, in the 32 or more threads that have a row.
constexpr te::testing::SumOrder kDeviceOrder{.lanes = 32, .run = 8};
// Rows that allow vectors and rows that do not, more and fewer queries than keys.
constexpr Shape kShapes[] = {{1, 1, 1, 1}, {2, 3, 5, 17}, {2, 2, 3, 24},
                             {1, 2, 9, 4}, {2, 1, 11, 8}, {1, 1, 3, 520}};
// Rows of each size of block, and beyond what registers hold.
constexpr Shape kLongShapes[] = {{1, 1, 2, 1040}, {1, 2, 2, 4104},  {1, 1, 2, 8200},
                                 {1, 1, 3, 2051}, {1, 1, 2, 16392}, {1, 1, 1, 8191}};

// The ops with their arguments copied to the device, and the results back.
void forward_on_device(const te::SoftmaxForwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::SoftmaxForwardArgs args = host;
  args.input = mirror.view(host.input);
  args.output = mirror.view(host.output);
  args.mask = mirror.pointer(host.mask,
                             static_cast<size_t>(host.mask_batch * host.queries * host.input.cols));
  te::softmax_forward(args, kOnDevice);
  mirror.download();
}

void backward_on_device(const te::SoftmaxBackwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::softmax_backward({.grad_output = mirror.view(host.grad_output),
                        .output = mirror.view(host.output),
                        .grad_input = mirror.view(host.grad_input),
                        .scale = host.scale},
                       kOnDevice);
  mirror.download();
}

void check_forward(Problem problem, DType output) {
  problem.order = kDeviceOrder;
  te::testing::check_softmax_forward(problem, output, &forward_on_device);
}

void check_backward(int64_t rows, int64_t keys, DType output, DType grad, DType grad_input) {
  te::testing::check_softmax_backward(rows, keys, output, grad, grad_input, &backward_on_device,
                                      kDeviceOrder);
}

TEST(CudaSoftmaxForward, MatchesTheFormulaForEveryMaskTypeAndShape) {
  for (const SoftmaxMask mask : kMasks) {
    for (const DType input : kHighPrecision) {
      for (const DType output : kHighPrecision) {
        for (const Shape shape : kShapes) {
          for (const int64_t mask_batch : {int64_t{1}, shape.batch}) {
            if (kIsSlowDevice && (input != DType::kBFloat16 || output != input)) {
              continue;
            }
            SCOPED_TRACE(::testing::Message()
                         << "mask " << static_cast<int>(mask) << " input " << te::dtype_name(input)
                         << " output " << te::dtype_name(output) << " queries " << shape.queries
                         << " keys " << shape.keys);
            check_forward(Problem(shape, mask, input, mask_batch), output);
          }
        }
      }
    }
  }
}

TEST(CudaSoftmaxForward, MatchesTheFormulaForLongRows) {
  for (const SoftmaxMask mask : kMasks) {
    for (const DType dtype : kHighPrecision) {
      for (const Shape shape : kLongShapes) {
        if (kIsSlowDevice && (dtype != DType::kBFloat16 || mask == SoftmaxMask::kCausal)) {
          continue;
        }
        SCOPED_TRACE(::testing::Message() << "mask " << static_cast<int>(mask) << " "
                                          << te::dtype_name(dtype) << " keys " << shape.keys);
        check_forward(Problem(shape, mask, dtype, 1), dtype);
      }
    }
  }
}

TEST(CudaSoftmaxForward, NegativeAndZeroScales) {
  for (const float scale : {-1.5F, 0.0F, 30.0F}) {
    for (const int64_t keys : {70, 72}) {
      Problem problem({1, 2, 4, keys}, SoftmaxMask::kPadding, DType::kFloat32, 1);
      problem.scale = scale;
      check_forward(problem, DType::kFloat32);
    }
  }
}

TEST(CudaSoftmaxForward, HiddenColumnsDoNotMatter) {
  for (const SoftmaxMask mask : {SoftmaxMask::kPadding, SoftmaxMask::kCausal}) {
    for (const int64_t keys : {40, 41}) {
      Problem clean({1, 1, 6, keys}, mask, DType::kFloat32, 1);
      Problem dirty({1, 1, 6, keys}, mask, DType::kFloat32, 1);
      for (int64_t i = 0; i < dirty.input.numel(); ++i) {
        if (!dirty.is_visible(i / keys, i % keys)) {
          dirty.input.set(i, i % 2 == 0 ? std::nanf("") : HUGE_VALF);
        }
      }
      Matrix expected(DType::kFloat32, 6, keys), got(DType::kFloat32, 6, keys);
      forward_on_device(clean.args(expected), {});
      forward_on_device(dirty.args(got), {});
      EXPECT_TRUE(te::testing::same_bytes(got, expected));
    }
  }
}

TEST(CudaSoftmaxForward, NaNAndInfiniteScores) {
  for (const int64_t keys : {32, 33}) {
    Problem problem({1, 1, 4, keys}, SoftmaxMask::kCausalAligned, DType::kFloat32, 1);
    problem.input.set(0, std::nanf(""));
    problem.input.set(keys, HUGE_VALF);
    problem.input.set(2 * keys, -HUGE_VALF);  // one of many: gets probability 0
    for (int64_t i = 3 * keys; i < 4 * keys; ++i) {
      problem.input.set(i, -HUGE_VALF);
    }
    Matrix output(DType::kFloat32, 4, keys);
    forward_on_device(problem.args(output), {});
    for (int64_t i = 0; i < keys; ++i) {
      EXPECT_EQ(std::isnan(output.get(i)), problem.is_visible(0, i)) << i;
      EXPECT_EQ(std::isnan(output.get(keys + i)), problem.is_visible(1, i)) << i;
      EXPECT_FALSE(std::isnan(output.get(2 * keys + i))) << i;
      EXPECT_TRUE(std::isnan(output.get(3 * keys + i))) << i;
    }
    EXPECT_EQ(output.get(2 * keys), 0.0);
  }
}

TEST(CudaSoftmaxForward, EmptyIsOrdinary) {
  for (const SoftmaxMask mask : kMasks) {
    for (const Shape shape : {Shape{0, 2, 3, 4}, Shape{1, 2, 3, 0}, Shape{1, 2, 0, 4}}) {
      Problem problem(shape, mask, DType::kFloat32, 1);
      Matrix output(DType::kFloat32, problem.input.rows(), shape.keys);
      forward_on_device(problem.args(output), {});
    }
  }
}

TEST(CudaSoftmaxBackward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const DType output : kHighPrecision) {
    for (const DType grad : kHighPrecision) {
      if (kIsSlowDevice && output == DType::kFloat16) {
        continue;
      }
      for (const Shape shape : kShapes) {
        SCOPED_TRACE(::testing::Message() << te::dtype_name(output) << " " << te::dtype_name(grad)
                                          << " keys " << shape.keys);
        check_backward(shape.queries, shape.keys, output, grad, output);
        check_backward(shape.queries, shape.keys, output, grad, grad);
      }
    }
  }
  check_backward(0, 65, DType::kBFloat16, DType::kFloat32, DType::kFloat32);
}

TEST(CudaSoftmaxBackward, MatchesTheFormulaForLongRows) {
  for (const DType dtype : kHighPrecision) {
    for (const Shape shape : kLongShapes) {
      if (kIsSlowDevice && dtype != DType::kBFloat16) {
        continue;
      }
      SCOPED_TRACE(::testing::Message() << te::dtype_name(dtype) << " keys " << shape.keys);
      check_backward(shape.queries, shape.keys, dtype, dtype, dtype);
    }
  }
}

}  // namespace
