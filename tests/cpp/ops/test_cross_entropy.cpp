// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy of one and of several ranks against the FP64 formula with derived bounds; special
// values; what is refused.
#include <gtest/gtest.h>
#include <transformer_engine/cross_entropy.h>
#include <transformer_engine/error.h>

#include <limits>

#include "cpu/cross_entropy_kernels.h"
#include "helpers/cross_entropy_problem.h"
#include "helpers/errors.h"
#include "helpers/isas.h"
#include "reference/cross_entropy.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::check_cross_entropy;
using te::testing::expect_error;
using te::testing::kHighPrecision;
using te::testing::Matrix;
using Ops = te::testing::CrossEntropyOps;
using Problem = te::testing::CrossEntropyProblem;
using Shape = te::testing::CrossEntropyShape;

const Ops kCpu = {&te::cross_entropy_statistics,
                  &te::cross_entropy_loss,
                  &te::cross_entropy_backward,
                  {.lanes = 64},
                  te::cpu::kCrossEntropyChunk};
const Ops kReference = {&te::reference::cross_entropy_statistics,
                        &te::reference::cross_entropy_loss,
                        &te::reference::cross_entropy_backward,
                        {.lanes = 1},
                        1 << 20};
const Shape kShapes[] = {{1, 1}, {5, 7}, {9, 64, 2}, {4, 1001, 3}, {3, 5000}, {0, 5}};

void check_all(const Ops& ops) {
  for (const DType dtype : kHighPrecision) {
    for (const Shape& shape : kShapes) {
      for (const float smoothing : {0.0F, 0.1F, 1.0F}) {
        for (const bool is_mean : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << te::dtype_name(dtype) << " rows " << shape.rows << " columns "
                       << shape.columns << " smoothing " << smoothing << " mean " << is_mean);
          Problem problem(shape, dtype);
          problem.label_smoothing = smoothing;
          problem.is_mean = is_mean;
          check_cross_entropy(problem, ops);
        }
      }
    }
  }
}

TEST(CrossEntropy, MatchesTheFormula) { check_all(kCpu); }
TEST(CrossEntropy, TheReferenceMatchesTheFormula) { check_all(kReference); }

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  for (const float shift : {-3e4F, 3e4F}) {
    Problem problem({3, 70, 2}, DType::kFloat32);
    for (Matrix& input : problem.inputs) {
      te::testing::fill_normal(input, 3, shift, 20.0F);
    }
    check_cross_entropy(problem, kCpu);
  }
}

TEST(CrossEntropy, NothingCountsGivesZeros) {
  Problem problem({3, 70}, DType::kBFloat16);
  problem.ids = {Problem::kIgnored, Problem::kIgnored, Problem::kIgnored};
  problem.is_mean = true;
  check_cross_entropy(problem, kCpu);
}

struct Results {
  Matrix loss, gradient;
};
// Loss and gradient of one row of FP32 logits whose target is `target`.
Results run_row(const std::vector<float>& logits, int64_t target, int ranks = 1) {
  const auto columns = static_cast<int64_t>(logits.size()) / ranks;
  Results results{Matrix(DType::kFloat32, 1, 1),
                  Matrix(DType::kFloat32, 1, static_cast<int64_t>(logits.size()))};
  Matrix statistics(DType::kFloat32, ranks, 4), softmax(DType::kFloat32, 1, 2),
      weight(DType::kFloat32, 1, 1), grad_output(DType::kFloat32, 1, 1);
  grad_output.set(0, 1.0F);
  const auto part = [&](const float* data, int64_t rows, int64_t cols) {
    return te::TensorView{
        .data = const_cast<float*>(data), .dtype = DType::kFloat32, .rows = rows, .cols = cols};
  };
  const auto targets = [&](int rank) {
    return te::CrossEntropyTargets{
        .ids = &target, .first = rank * columns, .vocabulary = ranks * columns};
  };
  for (int rank = 0; rank < ranks; ++rank) {
    te::cross_entropy_statistics({.input = part(logits.data() + rank * columns, 1, columns),
                                  .statistics = part(statistics.data<float>() + 4 * rank, 1, 4),
                                  .targets = targets(rank)},
                                 {});
  }
  te::cross_entropy_loss({.statistics = statistics.view(),
                          .loss = results.loss.view(),
                          .softmax = softmax.view(),
                          .weight = weight.view(),
                          .targets = targets(0)},
                         {});
  for (int rank = 0; rank < ranks; ++rank) {
    te::cross_entropy_backward(
        {.input = part(logits.data() + rank * columns, 1, columns),
         .grad_output = grad_output.view(),
         .softmax = softmax.view(),
         .weight = weight.view(),
         .grad_input = part(results.gradient.data<float>() + rank * columns, 1, columns),
         .targets = targets(rank)},
        {});
  }
  return results;
}

TEST(CrossEntropy, MaskedLogitsHaveNoShare) {
  const float masked = -HUGE_VALF;
  // Far below 0, so that a rank without any logit must not count as one with the largest 0.
  const std::vector<float> logits = {-200.0F, -200.0F, masked, masked};
  for (const int ranks : {1, 2}) {
    Results results = run_row(logits, 1, ranks);
    EXPECT_NEAR(results.loss.get(0), std::log(2.0), 4 * te::testing::kFloatRoundoff) << ranks;
    EXPECT_EQ(results.gradient.get(0), 0.5);
    EXPECT_EQ(results.gradient.get(1), -0.5);
    EXPECT_EQ(results.gradient.get(2), 0.0);
  }
  EXPECT_EQ(run_row(logits, 3).loss.get(0), HUGE_VAL);
}

TEST(CrossEntropy, NaNAndTargetsOutsideTheVocabularyGiveNaN) {
  std::vector<float> logits(5000, 1.0F);
  for (const int64_t at : {0, 2047, 2048, 4999}) {
    logits[static_cast<size_t>(at)] = std::nanf("");
    EXPECT_TRUE(std::isnan(run_row(logits, 5).loss.get(0))) << at;
    logits[static_cast<size_t>(at)] = 1.0F;
  }
  for (const int64_t target : {-1, 5000}) {
    Results results = run_row(logits, target);
    EXPECT_TRUE(std::isnan(results.loss.get(0)));
    EXPECT_TRUE(std::isnan(results.gradient.get(3)));
  }
  const std::vector<float> nothing(3000, -HUGE_VALF);
  EXPECT_TRUE(std::isnan(run_row(nothing, 5).loss.get(0)));
  // A NaN among masked logits is not lost.
  std::vector<float> mixed = nothing;
  mixed[1] = std::nanf("");
  mixed[2999] = 1.0F;
  EXPECT_TRUE(std::isnan(run_row(mixed, 2999).loss.get(0)));
}

TEST(CrossEntropy, IgnoredRowsIgnoreTheirLogits) {
  std::vector<float> logits(70, std::nanf(""));
  Results results = run_row(logits, te::CrossEntropyTargets{}.ignored);
  EXPECT_EQ(results.loss.get(0), 0.0);
  for (int64_t i = 0; i < 70; ++i) {
    EXPECT_EQ(results.gradient.get(i), 0.0);
  }
}

TEST(CrossEntropyKernels, EveryInstructionSetGivesTheSameBits) {
  const auto tables = TE_TABLES_OF(te::cpu::CrossEntropyKernels, cross_entropy_kernels);
  for (const int64_t columns : {1, 37, 2048, 2049, 4500}) {
    for (const DType dtype : kHighPrecision) {
      Matrix input(dtype, 1, columns), first(dtype, 1, columns);
      te::testing::fill_normal(input, 1, 0.0F, 5.0F);
      std::vector<float> expected;
      for (size_t isa = 0; isa < tables.size(); ++isa) {
        std::vector<float> scratch(te::cpu::kCrossEntropyChunk);
        te::cpu::CrossEntropyStatisticsRow row{.input = input.data<void>(),
                                               .columns = columns,
                                               .scratch = scratch.data(),
                                               .largest = 0.0F,
                                               .sum = 0.0F,
                                               .total = 0.0F};
        tables[isa].table->statistics[te::cpu::high_precision_index(dtype)](row);
        Matrix output(dtype, 1, columns);
        Matrix& gradient = isa == 0 ? first : output;
        tables[isa].table->gradient[te::cpu::high_precision_index(dtype)](
            {.input = input.data<void>(),
             .grad_input = gradient.data<void>(),
             .columns = columns,
             .gradient = 0.7F,
             .largest = row.largest,
             .reciprocal = 1.0F / row.sum,
             .smoothed = 0.01F});
        const std::vector<float> got = {row.largest, row.sum, row.total};
        expected = isa == 0 ? got : expected;
        EXPECT_EQ(got, expected) << tables[isa].isa << " columns " << columns;
        EXPECT_TRUE(te::testing::same_bytes(gradient, first)) << tables[isa].isa;
      }
    }
  }
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  const std::vector<int64_t> ids(3, 0);
  Matrix input(DType::kFloat32, 3, 5), statistics(DType::kFloat32, 3, 4),
      softmax(DType::kFloat32, 3, 2), weight(DType::kFloat32, 1, 1), loss(DType::kFloat32, 1, 3),
      half(DType::kBFloat16, 3, 5), half_statistics(DType::kBFloat16, 3, 4);
  const te::CrossEntropyTargets targets{.ids = ids.data(), .vocabulary = 5};
  const auto statistics_with = [&](const te::TensorView& out, te::CrossEntropyTargets given) {
    te::cross_entropy_statistics({.input = input.view(), .statistics = out, .targets = given}, {});
  };
  expect_error<te::ValueError>([&] { statistics_with(softmax.view(), targets); },
                               {"cross_entropy_statistics: statistics has shape [3, 2]"});
  expect_error<te::TypeError>([&] { statistics_with(half_statistics.view(), targets); },
                              {"statistics has dtype bfloat16"});
  expect_error<te::ValueError>(
      [&] { statistics_with(statistics.view(), {.ids = nullptr, .vocabulary = 5}); },
      {"targets are null for 3 rows"});
  expect_error<te::ValueError>(
      [&] { statistics_with(statistics.view(), {.ids = ids.data(), .first = 1, .vocabulary = 5}); },
      {"columns are ids 1 to 6 of a vocabulary of 5"});
  te::CrossEntropyLossArgs args{.statistics = statistics.view(),
                                .loss = loss.view(),
                                .softmax = softmax.view(),
                                .weight = weight.view(),
                                .targets = targets};
  args.label_smoothing = 1.5F;
  expect_error<te::ValueError>([&] { te::cross_entropy_loss(args, {}); },
                               {"cross_entropy_loss: label_smoothing is 1.5"});
  args.label_smoothing = 0.0F;
  args.is_mean = true;
  expect_error<te::ValueError>([&] { te::cross_entropy_loss(args, {}); },
                               {"loss has shape [1, 3]"});
  args.is_mean = false;
  args.statistics.rows = 4;
  expect_error<te::ValueError>([&] { te::cross_entropy_loss(args, {}); },
                               {"statistics has 4 rows for 3 rows of logits"});
  expect_error<te::TypeError>(
      [&] {
        te::cross_entropy_backward({.input = input.view(),
                                    .grad_output = loss.view(),
                                    .softmax = softmax.view(),
                                    .weight = weight.view(),
                                    .grad_input = half.view(),
                                    .targets = targets},
                                   {});
      },
      {"cross_entropy_backward: grad_input has dtype bfloat16; float32"});
}

}  // namespace
