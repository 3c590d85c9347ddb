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
#include "helpers/closeness.h"
#include "helpers/isas.h"
#include "reference/softmax.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::SoftmaxMask;
using te::testing::Expected;
using te::testing::kFloatRoundoff;
using te::testing::Matrix;

struct Shape {
  int64_t batch, heads, queries, keys;
};
const Shape kShapes[] = {{1, 1, 1, 1}, {2, 3, 5, 17}, {1, 2, 9, 4}, {2, 1, 4, 64}, {1, 1, 3, 2051}};
const SoftmaxMask kMasks[] = {SoftmaxMask::kNone, SoftmaxMask::kPadding, SoftmaxMask::kCausal,
                              SoftmaxMask::kCausalAligned};

struct Problem {
  Shape shape;
  SoftmaxMask mask_kind;
  Matrix input;
  std::vector<uint8_t> mask;
  int64_t mask_batch;
  float scale = 0.7F;

  Problem(Shape problem_shape, SoftmaxMask kind, DType dtype, int64_t batch_of_mask)
      : shape(problem_shape),
        mask_kind(kind),
        input(dtype, shape.batch * shape.heads * shape.queries, shape.keys),
        mask(batch_of_mask * shape.queries * shape.keys),
        mask_batch(batch_of_mask) {
    te::testing::fill_normal(input, 1, 3.0F, 4.0F);
    std::mt19937 generator(2);
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = static_cast<uint8_t>(generator() % 3 == 0 ? 1 + generator() % 255 : 0);
    }
    // The first query sees nothing.
    std::fill_n(mask.begin(), shape.queries > 0 ? shape.keys : 0, uint8_t{1});
  }

  bool is_visible(int64_t row, int64_t key) const {
    const int64_t query = row % shape.queries;
    const int64_t sample = mask_batch == 1 ? 0 : row / shape.queries / shape.heads;
    switch (mask_kind) {
      case SoftmaxMask::kNone:
        return true;
      case SoftmaxMask::kPadding:
        return mask[(sample * shape.queries + query) * shape.keys + key] == 0;
      case SoftmaxMask::kCausal:
        return key <= query;
      case SoftmaxMask::kCausalAligned:
        return key <= query + shape.keys - shape.queries;
    }
    return false;
  }

  te::SoftmaxForwardArgs args(Matrix& output) {
    return {.mask_kind = mask_kind,
            .input = input.view(),
            .output = output.view(),
            .scale = scale,
            .batch = shape.batch,
            .heads = shape.heads,
            .queries = shape.queries,
            .mask = mask.data(),
            .mask_batch = mask_batch};
  }

  double score(int64_t row, int64_t key) {
    return static_cast<double>(scale) * input.get(row * shape.keys + key);
  }

  // e^(score - largest) / sum. The exponent, rounded once, is off by its own rounding, which exp
  // makes relative; so is the largest, but that cancels in the quotient up to the sum's terms of
  // their own rounding. exp, the sum, the reciprocal and the product follow.
  void append_row(int64_t row, std::vector<Expected>* expected) {
    double largest = -HUGE_VAL;
    for (int64_t key = 0; key < shape.keys; ++key) {
      largest = is_visible(row, key) ? std::max(largest, score(row, key)) : largest;
    }
    double sum = 0.0;
    double sum_error = 0.0;
    for (int64_t key = 0; key < shape.keys; ++key) {
      const double e = is_visible(row, key) ? std::exp(score(row, key) - largest) : 0.0;
      sum += e;
      sum_error += is_visible(row, key) ? e * std::abs(score(row, key) - largest) : 0.0;
    }
    const double rounding = te::testing::sum_roundoff(shape.keys, 64, 6) +
                            2 * kFloatRoundoff * (sum > 0.0 ? sum_error / sum : 0.0);
    for (int64_t key = 0; key < shape.keys; ++key) {
      const double distance = is_visible(row, key) ? largest - score(row, key) : 0.0;
      const double y = is_visible(row, key) ? std::exp(-distance) / sum : 0.0;
      expected->push_back({y, y * (rounding + 2 * kFloatRoundoff * distance) +
                                  (y > 0.0 ? te::testing::half_spacing(DType::kFloat32) : 0.0)});
    }
  }
};

using ForwardFunction = void (*)(const te::SoftmaxForwardArgs&, const te::Context&);
using BackwardFunction = void (*)(const te::SoftmaxBackwardArgs&, const te::Context&);

void check_forward(Problem& problem, DType output_dtype, ForwardFunction run) {
  Matrix output(output_dtype, problem.input.rows(), problem.input.cols());
  run(problem.args(output), {.num_threads = 2});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < problem.input.rows(); ++row) {
    problem.append_row(row, &expected);
  }
  EXPECT_TRUE(te::testing::all_close(output, expected));
  for (int64_t i = 0; i < output.numel(); ++i) {
    if (!problem.is_visible(i / problem.shape.keys, i % problem.shape.keys)) {
      EXPECT_EQ(output.get(i), 0.0) << "hidden element " << i;
    }
  }
}

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
            check_forward(problem, output, &te::softmax_forward);
          }
        }
      }
    }
  }
}

TEST(SoftmaxForward, TheReferenceMatchesTheFormula) {
  for (const SoftmaxMask mask : kMasks) {
    Problem problem({2, 3, 5, 17}, mask, DType::kBFloat16, 2);
    check_forward(problem, DType::kFloat32, &te::reference::softmax_forward);
  }
}

TEST(SoftmaxForward, NegativeAndZeroScales) {
  for (const float scale : {-1.5F, 0.0F, 30.0F}) {
    Problem problem({1, 2, 4, 70}, SoftmaxMask::kPadding, DType::kFloat32, 1);
    problem.scale = scale;
    check_forward(problem, DType::kFloat32, &te::softmax_forward);
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

// grad_input of one row, and its bound: the sum of products first, then a difference and two
// products.
void append_gradient(Matrix& grad_output, Matrix& output, int64_t row, double scale,
                     std::vector<Expected>* expected) {
  const int64_t keys = output.cols();
  double mean = 0.0;
  double magnitude = 0.0;
  for (int64_t i = row * keys; i < (row + 1) * keys; ++i) {
    mean += grad_output.get(i) * output.get(i);
    magnitude += std::abs(grad_output.get(i) * output.get(i));
  }
  for (int64_t i = row * keys; i < (row + 1) * keys; ++i) {
    const double factor = std::abs(scale * output.get(i));
    expected->push_back(
        {scale * (grad_output.get(i) - mean) * output.get(i),
         factor * (te::testing::sum_roundoff(keys, 64, 2) * magnitude +
                   4 * kFloatRoundoff * (std::abs(grad_output.get(i)) + std::abs(mean))) +
             4 * te::testing::half_spacing(DType::kFloat32)});
  }
}

void check_backward(int64_t rows, int64_t keys, DType output_dtype, DType grad_dtype,
                    DType grad_input_dtype, BackwardFunction run) {
  Problem problem({1, 1, rows, keys}, SoftmaxMask::kCausalAligned, DType::kFloat32, 1);
  Matrix output(output_dtype, rows, keys), grad_output(grad_dtype, rows, keys),
      grad_input(grad_input_dtype, rows, keys);
  te::softmax_forward(problem.args(output), {});
  te::testing::fill_normal(grad_output, 5);
  run({.grad_output = grad_output.view(),
       .output = output.view(),
       .grad_input = grad_input.view(),
       .scale = -0.7F},
      {.num_threads = 2});
  std::vector<Expected> expected;
  for (int64_t row = 0; row < rows; ++row) {
    append_gradient(grad_output, output, row, -0.7F, &expected);
  }
  EXPECT_TRUE(te::testing::all_close(grad_input, expected));
}

TEST(SoftmaxBackward, MatchesTheFormulaForEveryTypeAndShape) {
  for (const DType output : te::testing::kHighPrecision) {
    for (const DType grad : te::testing::kHighPrecision) {
      for (const Shape shape : kShapes) {
        SCOPED_TRACE(::testing::Message() << te::dtype_name(output) << " " << te::dtype_name(grad)
                                          << " keys " << shape.keys);
        check_backward(shape.queries, shape.keys, output, grad, output, &te::softmax_backward);
        check_backward(shape.queries, shape.keys, output, grad, grad, &te::softmax_backward);
      }
    }
  }
  check_backward(3, 65, DType::kBFloat16, DType::kFloat32, DType::kFloat32,
                 &te::reference::softmax_backward);
  check_backward(0, 65, DType::kBFloat16, DType::kFloat32, DType::kFloat32, &te::softmax_backward);
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
  append_gradient(c, y, 0, kScale, &expected);
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
