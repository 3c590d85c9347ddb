// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Softmax variants against the FP64 formula with derived bounds; the formula of the gradient
// against finite differences.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/softmax.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/softmax_kernels.h"
#include "helpers/isas.h"
#include "helpers/softmax_problem.h"
#include "reference/softmax.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::SoftmaxMask;
using te::testing::append_softmax_gradient;
using te::testing::check_softmax_backward;
using te::testing::check_softmax_forward;
using te::testing::Expected;
using te::testing::kFloatRoundoff;
using te::testing::Matrix;
using Problem = te::testing::SoftmaxProblem;
using Shape = te::testing::SoftmaxShape;

const Shape kShapes[] = {{1, 1, 1, 1}, {2, 3, 5, 17}, {1, 2, 9, 4}, {2, 1, 4, 64}, {1, 1, 3, 2051}};
const SoftmaxMask kMasks[] = {SoftmaxMask::kNone, SoftmaxMask::kPadding, SoftmaxMask::kCausal,
                              SoftmaxMask::kCausalAligned};

TEST(SoftmaxForward, MatchesTheFormulaForEveryMaskTypeAndShape) {
  for (const SoftmaxMask mask : kMasks) {
    for (const DType input : te::testing::kHighPrecision) {
      for (const DType output : te::testing::kHighPrecision) {
        for (const Shape shape : kShapes) {
          for (const int64_t mask_batch : {int64_t{1}, shape.batch}) {
            SCOPED_TRACE(::testing::Message()
                         << "mask " << static_cast<int>(mask) << " input " << te::dtype_name(input)
                         << " output " << te::dtype_name(output) << " queries " << shape.queries
                         << " keys " << shape.keys);
            Problem problem(shape, mask, input, mask_batch);
            check_softmax_forward(problem, output, &te::softmax_forward);
          }
        }
      }
    }
  }
}

TEST(SoftmaxForward, TheReferenceMatchesTheFormula) {
  for (const SoftmaxMask mask : kMasks) {
    Problem problem({2, 3, 5, 17}, mask, DType::kBFloat16, 2);
    check_softmax_forward(problem, DType::kFloat32, &te::reference::softmax_forward);
  }
}

TEST(SoftmaxForward, NegativeAndZeroScales) {
  for (const float scale : {-1.5F, 0.0F, 30.0F}) {
    Problem problem({1, 2, 4, 70}, SoftmaxMask::kPadding, DType::kFloat32, 1);
    problem.scale = scale;
    check_softmax_forward(problem, DType::kFloat32, &te::softmax_forward);
  }
}

TEST(SoftmaxForward, HiddenColumnsAreNeverRead) {
  for (const SoftmaxMask mask : {SoftmaxMask::kPadding, SoftmaxMask::kCausal}) {
    Problem clean({1, 1, 6, 40}, mask, DType::kFloat32, 1);
    Problem dirty({1, 1, 6, 40}, mask, DType::kFloat32, 1);
    for (int64_t i = 0; i < dirty.input.numel(); ++i) {
      if (!dirty.is_visible(i / 40, i % 40)) {
        dirty.input.set(i, i % 2 == 0 ? std::nanf("") : HUGE_VALF);
      }
    }
    Matrix expected(DType::kFloat32, 6, 40), got(DType::kFloat32, 6, 40);
    te::softmax_forward(clean.args(expected), {});
    te::softmax_forward(dirty.args(got), {});
    EXPECT_TRUE(te::testing::same_bytes(got, expected));
  }
}

TEST(SoftmaxForward, NaNAndInfiniteScores) {
  Problem problem({1, 1, 4, 33}, SoftmaxMask::kCausalAligned, DType::kFloat32, 1);
  problem.input.set(0, std::nanf(""));
  problem.input.set(33, HUGE_VALF);
  problem.input.set(66, -HUGE_VALF);  // one of many: gets probability 0
  for (int64_t i = 99; i < 132; ++i) {
    problem.input.set(i, -HUGE_VALF);
  }
  Matrix output(DType::kFloat32, 4, 33);
  te::softmax_forward(problem.args(output), {});
  for (int64_t i = 0; i < 33; ++i) {
    const bool is_visible = problem.is_visible(0, i);
    EXPECT_EQ(std::isnan(output.get(i)), is_visible) << i;
    EXPECT_EQ(std::isnan(output.get(33 + i)), problem.is_visible(1, i)) << i;
    EXPECT_FALSE(std::isnan(output.get(66 + i))) << i;
    EXPECT_TRUE(std::isnan(output.get(99 + i))) << i;
  }
  EXPECT_EQ(output.get(66), 0.0);
}

TEST(SoftmaxForward, EmptyIsOrdinary) {
  for (const SoftmaxMask mask : kMasks) {
    for (const Shape shape : {Shape{0, 2, 3, 4}, Shape{1, 2, 3, 0}, Shape{1, 2, 0, 4}}) {
      Matrix input(DType::kFloat32, shape.batch * shape.heads * shape.queries, shape.keys);
      Matrix output(DType::kFloat32, input.rows(), shape.keys);
      te::softmax_forward({.mask_kind = mask,
                           .input = input.view(),
                           .output = output.view(),
                           .scale = 1.0F,
                           .batch = shape.batch,
                           .heads = shape.heads,
                           .queries = shape.queries,
                           .mask = nullptr,
                           .mask_batch = 1},
                          {});
    }
  }
}

TEST(SoftmaxBackward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const DType output : te::testing::kHighPrecision) {
    for (const DType grad : te::testing::kHighPrecision) {
      for (const Shape shape : kShapes) {
        SCOPED_TRACE(::testing::Message() << te::dtype_name(output) << " " << te::dtype_name(grad)
                                          << " keys " << shape.keys);
        check_softmax_backward(shape.queries, shape.keys, output, grad, output,
                               &te::softmax_backward);
        check_softmax_backward(shape.queries, shape.keys, output, grad, grad,
                               &te::softmax_backward);
      }
    }
  }
  check_softmax_backward(3, 65, DType::kBFloat16, DType::kFloat32, DType::kFloat32,
                         &te::reference::softmax_backward);
  check_softmax_backward(0, 65, DType::kBFloat16, DType::kFloat32, DType::kFloat32,
                         &te::softmax_backward);
}

TEST(SoftmaxBackward, TheFormulaAgreesWithFiniteDifferences) {
  constexpr int64_t kKeys = 13;
  constexpr double kScale = 0.7F;
  Matrix x(DType::kFloat32, 1, kKeys), c(DType::kFloat32, 1, kKeys), y(DType::kFloat32, 1, kKeys);
  te::testing::fill_normal(x, 1);
  te::testing::fill_normal(c, 2);
  const auto softmax = [&](const std::vector<double>& scores) {
    double sum = 0.0;
    for (const double score : scores) {
      sum += std::exp(kScale * score);
    }
    std::vector<double> result;
    for (const double score : scores) {
      result.push_back(std::exp(kScale * score) / sum);
    }
    return result;
  };
  const auto loss = [&](const std::vector<double>& scores) {
    const auto probabilities = softmax(scores);
    double sum = 0.0;
    for (int64_t i = 0; i < kKeys; ++i) {
      sum += c.get(i) * probabilities[i];
    }
    return sum;
  };
  std::vector<double> scores = te::testing::values_of(x);
  const auto probabilities = softmax(scores);
  for (int64_t i = 0; i < kKeys; ++i) {
    y.set(i, static_cast<float>(probabilities[i]));
  }
  std::vector<Expected> expected;
  append_softmax_gradient(c, y, 0, kScale, &expected);
  constexpr double kStep = 1e-5;  // errors: h^2, FP64 rounding over h, y rounded to FP32
  for (int64_t i = 0; i < kKeys; ++i) {
    const double at = scores[i];
    scores[i] = at + kStep;
    const double above = loss(scores);
    scores[i] = at - kStep;
    const double below = loss(scores);
    scores[i] = at;
    EXPECT_NEAR(expected[i].value, (above - below) / (2 * kStep), 8 * kFloatRoundoff);
  }
}

TEST(SoftmaxKernels, EveryInstructionSetGivesTheSameBits) {
  const auto tables = TE_TABLES_OF(te::cpu::SoftmaxKernels, softmax_kernels);
  for (const Shape shape : kShapes) {
    Problem problem({1, 1, 2, shape.keys}, SoftmaxMask::kPadding, DType::kFloat32, 1);
    const uint8_t* mask = problem.mask.data() + shape.keys;
    Matrix first(DType::kFloat32, 1, shape.keys), first_grad(DType::kFloat32, 1, shape.keys);
    for (size_t isa = 0; isa < tables.size(); ++isa) {
      Matrix output(DType::kFloat32, 1, shape.keys), grad(DType::kFloat32, 1, shape.keys);
      std::vector<float> scratch(shape.keys);
      tables[isa].table->forward[0]({.input = problem.input.data<float>() + shape.keys,
                                     .output = output.data<float>(),
                                     .input_dtype = DType::kFloat32,
                                     .output_dtype = DType::kFloat32,
                                     .mask = mask,
                                     .visible = shape.keys,
                                     .keys = shape.keys,
                                     .scale = 0.3F,
                                     .scratch = scratch.data()});
      tables[isa].table->backward[0]({.grad_output = problem.input.data<float>(),
                                      .output = output.data<float>(),
                                      .grad_input = grad.data<float>(),
                                      .grad_output_dtype = DType::kFloat32,
                                      .output_dtype = DType::kFloat32,
                                      .grad_input_dtype = DType::kFloat32,
                                      .keys = shape.keys,
                                      .scale = 0.3F});
      if (isa == 0) {
        for (int64_t i = 0; i < shape.keys; ++i) {
          first.set(i, static_cast<float>(output.get(i)));
          first_grad.set(i, static_cast<float>(grad.get(i)));
        }
      }
      EXPECT_TRUE(te::testing::same_bytes(output, first)) << tables[isa].isa;
      EXPECT_TRUE(te::testing::same_bytes(grad, first_grad)) << tables[isa].isa;
    }
  }
}

template <typename Error, typename Change>
void expect_forward_error(const std::string& name, const Change& change) {
  Problem problem({2, 1, 3, 8}, SoftmaxMask::kPadding, DType::kFloat32, 2);
  Matrix output(DType::kFloat32, 6, 8), untouched(DType::kFloat32, 6, 8);
  te::SoftmaxForwardArgs args = problem.args(output);
  change(args);
  try {
    te::softmax_forward(args, {});
    ADD_FAILURE() << "no error for " << name;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("softmax_forward: " + name, 0), 0U) << error.what();
  }
  EXPECT_TRUE(te::testing::same_bytes(output, untouched));
}

TEST(SoftmaxErrors, NameTheArgument) {
  using Args = te::SoftmaxForwardArgs;
  expect_forward_error<te::TypeError>("input", [](Args& a) { a.input.dtype = DType::kInt32; });
  expect_forward_error<te::ValueError>("output", [](Args& a) { a.output.cols = 7; });
  expect_forward_error<te::ValueError>("scale", [](Args& a) { a.scale = HUGE_VALF; });
  expect_forward_error<te::ValueError>("input has 6 rows", [](Args& a) { a.queries = 2; });
  expect_forward_error<te::ValueError>("mask_kind",
                                       [](Args& a) { a.mask_kind = static_cast<SoftmaxMask>(4); });
  expect_forward_error<te::ValueError>("mask has batch size", [](Args& a) { a.mask_batch = 3; });
  expect_forward_error<te::ValueError>("mask is null", [](Args& a) { a.mask = nullptr; });
  Matrix output(DType::kFloat32, 2, 3), grad(DType::kFloat32, 2, 4);
  EXPECT_THROW(te::softmax_backward({.grad_output = grad.view(),
                                     .output = output.view(),
                                     .grad_input = output.view(),
                                     .scale = 1.0F},
                                    {}),
               te::ValueError);
}

}  // namespace
