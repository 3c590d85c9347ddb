// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/cross_entropy.cu against the FP64 formula with derived bounds.
#include <gtest/gtest.h>
#include <transformer_engine/cross_entropy.h>

#include "cuda/device_mirror.h"
#include "helpers/cross_entropy_problem.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::check_cross_entropy;
using te::testing::DeviceMirror;
using te::testing::is_too_large;
using te::testing::kHighPrecision;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::Matrix;
using Ops = te::testing::CrossEntropyOps;
using Problem = te::testing::CrossEntropyProblem;
using Shape = te::testing::CrossEntropyShape;

// With vectors and without, more columns than a block takes at a time.
constexpr Shape kShapes[] = {{1, 1}, {5, 7}, {6, 64, 2}, {4, 101, 3}, {3, 5000}, {2, 9001}, {0, 8}};

te::CrossEntropyTargets on_device(te::CrossEntropyTargets targets, int64_t rows,
                                  DeviceMirror& mirror) {
  targets.ids = mirror.pointer(targets.ids, static_cast<size_t>(rows));
  return targets;
}

void statistics_on_device(const te::CrossEntropyStatisticsArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::cross_entropy_statistics({.input = mirror.view(host.input),
                                .statistics = mirror.view(host.statistics),
                                .targets = on_device(host.targets, host.input.rows, mirror)},
                               kOnDevice);
  mirror.download();
}

void loss_on_device(const te::CrossEntropyLossArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::CrossEntropyLossArgs args = host;
  args.statistics = mirror.view(host.statistics);
  args.loss = mirror.view(host.loss);
  args.softmax = mirror.view(host.softmax);
  args.weight = mirror.view(host.weight);
  args.targets = on_device(host.targets, host.softmax.rows, mirror);
  te::cross_entropy_loss(args, kOnDevice);
  mirror.download();
}

void backward_on_device(const te::CrossEntropyBackwardArgs& host, const te::Context&) {
  DeviceMirror mirror;
  te::CrossEntropyBackwardArgs args = host;
  args.input = mirror.view(host.input);
  args.grad_output = mirror.view(host.grad_output);
  args.softmax = mirror.view(host.softmax);
  args.weight = mirror.view(host.weight);
  args.grad_input = mirror.view(host.grad_input);
  args.targets = on_device(host.targets, host.input.rows, mirror);
  te::cross_entropy_backward(args, kOnDevice);
  mirror.download();
}

// A thread's partial sum is rescaled with every vector of 8.
const Ops kDevice = {
    &statistics_on_device, &loss_on_device, &backward_on_device, {.lanes = 512, .run = 8}, 512 * 8};

TEST(CudaCrossEntropy, MatchesTheFormula) {
  for (const DType dtype : kHighPrecision) {
    for (const Shape& shape : kShapes) {
      for (const float smoothing : {0.0F, 0.1F}) {
        for (const bool is_mean : {false, true}) {
          if (is_too_large(shape.rows * shape.columns) ||
              (kIsSlowDevice && dtype != DType::kBFloat16)) {
            continue;
          }
          SCOPED_TRACE(::testing::Message()
                       << te::dtype_name(dtype) << " rows " << shape.rows << " columns "
                       << shape.columns << " smoothing " << smoothing << " mean " << is_mean);
          Problem problem(shape, dtype);
          problem.label_smoothing = smoothing;
          problem.is_mean = is_mean;
          check_cross_entropy(problem, kDevice);
        }
      }
    }
  }
}

TEST(CudaCrossEntropy, ManyRows) {
  Problem problem({kIsSlowDevice ? 40 : 700, 3}, DType::kFloat32);
  for (const bool is_mean : {false, true}) {
    problem.is_mean = is_mean;
    check_cross_entropy(problem, kDevice);
  }
}

TEST(CudaCrossEntropy, NothingCountsGivesZeros) {
  Problem problem({3, 40}, DType::kBFloat16);
  problem.ids = {Problem::kIgnored, Problem::kIgnored, Problem::kIgnored};
  problem.is_mean = true;
  check_cross_entropy(problem, kDevice);
}

// Losses of rows of 16 FP32 logits on each of `ranks`, all with target 1.
std::vector<double> losses(Matrix& logits, int ranks) {
  const int64_t rows = logits.rows() / ranks;
  const std::vector<int64_t> ids(static_cast<size_t>(rows), 1);
  Matrix statistics(DType::kFloat32, logits.rows(), 4), softmax(DType::kFloat32, rows, 2),
      weight(DType::kFloat32, 1, 1), loss(DType::kFloat32, 1, rows);
  for (int rank = 0; rank < ranks; ++rank) {
    te::TensorView input = logits.view(), part = statistics.view();
    input.data = logits.data<float>() + rank * rows * 16;
    part.data = statistics.data<float>() + rank * rows * 4;
    input.rows = part.rows = rows;
    statistics_on_device(
        {.input = input,
         .statistics = part,
         .targets = {.ids = ids.data(), .first = 16 * rank, .vocabulary = 16 * ranks}},
        {});
  }
  loss_on_device({.statistics = statistics.view(),
                  .loss = loss.view(),
                  .softmax = softmax.view(),
                  .weight = weight.view(),
                  .targets = {.ids = ids.data(), .vocabulary = 16 * ranks}},
                 {});
  return te::testing::values_of(loss);
}

TEST(CudaCrossEntropy, MaskedLogitsAndNaN) {
  Matrix logits(DType::kFloat32, 6, 16);
  for (int64_t i = 0; i < logits.numel(); ++i) {
    logits.set(i, -HUGE_VALF);
  }
  logits.set(0, -200.0F);
  logits.set(1, -200.0F);
  logits.set(16 + 5, -200.0F);                        // the target is masked
  logits.set(2 * 16 + 9, std::nanf(""));              // among masked ones
  const std::vector<double> got = losses(logits, 2);  // the second rank has masked ones only
  EXPECT_NEAR(got[0], std::log(2.0), 4 * te::testing::kFloatRoundoff);
  EXPECT_EQ(got[1], HUGE_VAL);
  EXPECT_TRUE(std::isnan(got[2]));
}

TEST(CudaCrossEntropy, TargetsOutsideTheVocabularyGiveNaN) {
  for (const int64_t outside : {int64_t{-1}, int64_t{40}, int64_t{1} << 40}) {
    Problem problem({2, 40}, DType::kFloat32);
    problem.ids = {outside, 0};
    Matrix softmax(DType::kFloat32, 2, 2), weight(DType::kFloat32, 1, 1),
        grad_output(DType::kFloat32, 1, 2), grad_input(DType::kFloat32, 2, 40);
    for (Matrix* const matrix : {&softmax, &weight, &grad_output}) {
      te::testing::fill_normal(*matrix, 1);
    }
    backward_on_device({.input = problem.inputs[0].view(),
                        .grad_output = grad_output.view(),
                        .softmax = softmax.view(),
                        .weight = weight.view(),
                        .grad_input = grad_input.view(),
                        .targets = problem.targets(0)},
                       {});
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_TRUE(std::isnan(grad_input.get(i)));
      EXPECT_FALSE(std::isnan(grad_input.get(40 + i)));
    }
  }
}

}  // namespace
