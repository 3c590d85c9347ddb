// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// compute_nvfp4_amax and quantize_nvfp4 through their public entries: against the written rule,
// computed in FP64 with one rounding to FP32 per operation and a search among all codes; and every
// refusal.
#include <gtest/gtest.h>
#include <transformer_engine/block_scaling.h>
#include <transformer_engine/error.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "helpers/closeness.h"
#include "helpers/errors.h"
#include "helpers/formats.h"
#include "helpers/nvfp4_problem.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::FourOverSix;
using te::QuantizeNvfp4Args;
using te::testing::expect_error;
using te::testing::expect_same_outputs;
using te::testing::fill_random;
using te::testing::kE2M1;
using te::testing::kE4M3;
using te::testing::Matrix;
using te::testing::NearestCode;
using te::testing::Nvfp4Case;
using te::testing::Nvfp4Copy;
using te::testing::Nvfp4Outputs;

// Empty, one row, one column, odd, prime, a block, one less, one more.
constexpr int64_t kShapes[][2] = {{0, 0},   {0, 7},   {5, 0},   {1, 1},   {1, 100}, {100, 1},
                                  {17, 31}, {16, 16}, {15, 15}, {17, 17}, {48, 64}, {37, 53}};

void quantize(Matrix& input, const Nvfp4Case& c, Nvfp4Outputs& outputs) {
  const QuantizeNvfp4Args args = outputs.args(input, c);
  te::compute_nvfp4_amax(args, {});
  te::quantize_nvfp4(args, {});
}

// One FP32 operation: the FP64 result is rounded once more, which changes nothing (53 >= 2 * 24 + 2
// bits, Figueroa 1995).
double fp32(double x) { return static_cast<double>(static_cast<float>(x)); }
constexpr double kFloatMax = static_cast<double>(std::numeric_limits<float>::max());

// What a copy must hold, from its values as stored. `cols` counts the padding of whole blocks.
class ExpectedCopy {
 public:
  ExpectedCopy(int64_t rows, int64_t cols, const Nvfp4Case& c, bool is_row_scaled)
      : rows_(rows),
        cols_(te::testing::nvfp4_blocks(cols) * 16),
        case_(c),
        is_row_scaled_(is_row_scaled),
        values_(rows * cols_, 0.0) {}

  double& at(int64_t row, int64_t col) { return values_[row * cols_ + col]; }

  // To be called when all values are set.
  void finish() {
    for (int64_t row = 0; row < rows_; ++row) {
      row_amax_.push_back(largest(row, row + 1, 0, cols_));
      amax_ = std::max(amax_, row_amax_.back());
    }
  }

  double amax(int64_t row) const { return is_row_scaled_ ? row_amax_[row] : amax_; }
  double tensor_scale(int64_t row) const {
    const double value = amax(row);
    if (value == 0.0 || std::isinf(value)) {
      return 1.0;
    }
    return std::min(fp32(6.0 * static_cast<double>(case_.e4m3_max) / value), kFloatMax);
  }
  uint32_t block_scale(int64_t row, int64_t col) const {
    const int64_t block = col / 16 * 16;
    const int64_t first = case_.has_square_tiles ? row / 16 * 16 : row;
    const int64_t last = case_.has_square_tiles ? std::min(first + 16, rows_) : row + 1;
    const double sixth = fp32(1.0 / 6.0);
    const double block_amax = largest(first, last, block, block + 16);
    return e4m3_.saturating(fp32(block_amax * fp32(tensor_scale(row) * sixth)));
  }
  uint32_t code(int64_t row, int64_t col) const {
    const double inverse = fp32(1.0 / tensor_scale(row));
    const double decode = fp32(kE4M3.value(block_scale(row, col)) * inverse);
    const double multiplier = std::min(fp32(1.0 / decode), kFloatMax);
    const double x = values_[row * cols_ + col];
    return std::isnan(x) ? 7 : e2m1_.saturating(fp32(x * multiplier));
  }

  void expect_equals(Nvfp4Copy& got, const std::string& what) const {
    for (size_t i = 0; i < got.amax.size(); ++i) {
      ASSERT_EQ(static_cast<double>(got.amax[i]), amax(static_cast<int64_t>(i))) << what;
    }
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) {
        ASSERT_EQ(got.scale(row, col), block_scale(row, col)) << what << row << ", " << col;
        ASSERT_EQ(got.code(row, col), code(row, col)) << what << row << ", " << col;
      }
      for (int64_t pad = cols_ / 16; pad < got.scales.cols(); ++pad) {
        ASSERT_EQ(got.scale(row, pad * 16), 0x5B) << what << "padding";
      }
    }
  }

 private:
  double largest(int64_t row, int64_t row_end, int64_t col, int64_t col_end) const {
    double result = 0.0;
    for (int64_t r = row; r < row_end; ++r) {
      for (int64_t c = col; c < col_end; ++c) {
        result = std::fmax(result, std::abs(values_[r * cols_ + c]));
      }
    }
    return result;
  }

  const int64_t rows_, cols_;
  const Nvfp4Case case_;
  const bool is_row_scaled_;
  std::vector<double> values_;
  std::vector<double> row_amax_;
  double amax_ = 0.0;
  const NearestCode e4m3_{kE4M3};
  const NearestCode e2m1_{kE2M1};
};

ExpectedCopy expected_rowwise(Matrix& input, const Nvfp4Case& c) {
  ExpectedCopy copy(input.rows(), input.cols(), c, c.is_row_scaled);
  for (int64_t i = 0; i < input.numel(); ++i) {
    copy.at(i / input.cols(), i % input.cols()) = input.get(i);
  }
  copy.finish();
  return copy;
}

// With the transform as a matrix product in FP64: exact for small whole numbers only.
ExpectedCopy expected_columnwise(Matrix& input, const Nvfp4Case& c) {
  ExpectedCopy copy(input.cols(), input.rows(), c, false);
  for (int64_t i = 0; i < input.numel(); ++i) {
    const int64_t token = i / input.cols();
    const int64_t channel = i % input.cols();
    if (!c.has_hadamard) {
      copy.at(channel, token) = input.get(i);
      continue;
    }
    for (int j = 0; j < 16; ++j) {
      const int minus = __builtin_popcount(static_cast<unsigned>(token % 16 & j)) +
                        ((c.signs >> (token % 16)) & 1);
      copy.at(channel, token / 16 * 16 + j) += input.get(i) * (minus % 2 == 0 ? 0.25 : -0.25);
    }
  }
  copy.finish();
  return copy;
}

void expect_rule(Matrix& input, const Nvfp4Case& c) {
  const std::string what = te::concat(te::dtype_name(input.view().dtype), " ", input.rows(), " x ",
                                      input.cols(), " ", c.text(), " ");
  Nvfp4Outputs outputs(input, c);
  quantize(input, c, outputs);
  if (c.has_rowwise) {
    expected_rowwise(input, c).expect_equals(outputs.rowwise, what + "rowwise ");
  }
  if (c.has_columnwise) {
    expected_columnwise(input, c).expect_equals(outputs.columnwise, what + "columnwise ");
  }
}

TEST(QuantizeNvfp4, FollowsTheRuleForAllShapesTypesAndUsages) {
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : te::testing::kHighPrecision) {
      Matrix input(dtype, rows, cols);
      fill_random(input, 7);
      for (const Nvfp4Case& c : te::testing::all_nvfp4_cases()) {
        if (!c.has_hadamard && !c.is_stochastic && c.four_over_six == FourOverSix::kNone) {
          expect_rule(input, c);
        }
      }
    }
  }
}

TEST(QuantizeNvfp4, FollowsTheRuleForTheTransformOfWholeNumbers) {
  std::mt19937 generator(11);
  std::uniform_int_distribution<int> number(-100, 100);
  for (const auto& [rows, cols] : kShapes) {
    Matrix input(DType::kBFloat16, rows, cols);
    for (int64_t i = 0; i < input.numel(); ++i) {
      input.set(i, static_cast<float>(number(generator)));
    }
    for (const Nvfp4Case& c : te::testing::all_nvfp4_cases()) {
      if (c.has_hadamard && !c.is_stochastic) {
        expect_rule(input, c);
      }
    }
  }
}

// Rows of special values beside ordinary ones; an infinite amax makes S = 1.
TEST(QuantizeNvfp4, FollowsTheRuleForSpecialValues) {
  const float nan = std::nanf("");
  const std::vector<std::vector<float>> blocks = {
      {0.0F, -0.0F, 0.0F},
      {nan, -nan, nan},
      {nan, 1.0F, -2.0F, 0.0F, 6.0F},
      {0x1p-149F, -0x1p-140F, 0.0F},
      {0x1p-126F, 0x1.8p-127F, -0x1p-126F},
      {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 6.0F, -0.25F, -0.75F, -1.25F, -5.0F},
      {3e38F, -1e38F, 1e30F},
  };
  for (const bool has_infinity : {false, true}) {
    for (const float scale : {1.0F, 1e-3F}) {
      Matrix input(DType::kFloat32, static_cast<int64_t>(blocks.size()), 33);
      for (int64_t i = 0; i < input.numel(); ++i) {
        const auto& block = blocks[i / 33];
        const size_t col = i % 33 % 16;
        input.set(i, col < block.size() ? block[col] * scale : 0.0F);
      }
      if (has_infinity) {
        input.set(2 * 33 + 7, -HUGE_VALF);
      }
      for (const bool is_row_scaled : {false, true}) {
        Nvfp4Case c;
        c.is_row_scaled = is_row_scaled;
        expect_rule(input, c);
      }
    }
  }
}

TEST(QuantizeNvfp4, ATileHasOneScaleForBothCopies) {
  Matrix input(DType::kBFloat16, 40, 50);
  fill_random(input, 3);
  for (const auto mode :
       {FourOverSix::kNone, FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
    const Nvfp4Case c{.has_square_tiles = true, .four_over_six = mode};
    Nvfp4Outputs outputs(input, c);
    quantize(input, c, outputs);
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t col = 0; col < 50; ++col) {
        ASSERT_EQ(outputs.rowwise.scale(row, col), outputs.columnwise.scale(col, row));
        ASSERT_EQ(outputs.rowwise.code(row, col), outputs.columnwise.code(col, row));
        ASSERT_EQ(outputs.rowwise.scale(row, col), outputs.rowwise.scale(row / 16 * 16, col));
      }
    }
  }
}

// Four over six: the error of a block's stored values, and of the other choice, in FP64.
class FourOverSixBlock {
 public:
  FourOverSixBlock(const std::vector<double>& x, double tensor_scale, FourOverSix mode)
      : x_(x), tensor_scale_(tensor_scale), mode_(mode) {
    for (const double value : x) {
      amax_ = std::max(amax_, std::abs(value));
    }
  }
  uint32_t scale(double to) const {
    const double six = fp32(amax_ * fp32(tensor_scale_ * fp32(1.0 / 6.0)));
    return e4m3_.saturating(to == 6.0 ? six : fp32(six * 1.5));
  }
  double error(double to) const {
    const double d = kE4M3.value(scale(to));
    const double multiplier = std::min(fp32(1.0 / fp32(d * fp32(1.0 / tensor_scale_))), kFloatMax);
    double sum = 0.0;
    for (const double x : x_) {
      const double q = kE2M1.value(e2m1_.saturating(fp32(x * multiplier)));
      const double difference = std::abs(q * d - x * tensor_scale_);
      sum += mode_ == FourOverSix::kMeanSquaredError ? difference * difference : difference;
    }
    return sum;
  }
  // Of an FP32 error sum: x * S, the difference, the square and four additions each round once; the
  // first relative to x * S, at most amax * S, which squaring doubles and multiplies by the error.
  double bound() const {
    const double largest = amax_ * tensor_scale_;
    const bool is_squared = mode_ == FourOverSix::kMeanSquaredError;
    const double sum = std::max(error(4.0), error(6.0));
    return 16 * 0x1p-24 * largest * (is_squared ? 2 * largest : 1.0) + 8 * 0x1p-24 * sum;
  }

 private:
  std::vector<double> x_;
  double tensor_scale_, amax_ = 0.0;
  FourOverSix mode_;
  const NearestCode e4m3_{kE4M3};
  const NearestCode e2m1_{kE2M1};
};

TEST(QuantizeNvfp4, FourOverSixTakesTheSmallerError) {
  Matrix input(DType::kFloat32, 64, 64);
  te::testing::fill_normal(input, 9);
  for (const float e4m3_max : {448.0F, 256.0F}) {
    for (const auto mode : {FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
      const Nvfp4Case c{.four_over_six = mode, .e4m3_max = e4m3_max};
      Nvfp4Outputs outputs(input, c);
      quantize(input, c, outputs);
      const double tensor_scale = expected_rowwise(input, c).tensor_scale(0);
      int fours = 0;
      int sixes = 0;
      for (int64_t block = 0; block < 64 * 4; ++block) {
        std::vector<double> x;
        for (int i = 0; i < 16; ++i) {
          x.push_back(input.get(block * 16 + i));
        }
        const FourOverSixBlock expected(x, tensor_scale, mode);
        const double advantage = expected.error(6.0) - expected.error(4.0);
        if (std::abs(advantage) > expected.bound()) {
          const double to = advantage > 0.0 ? 4.0 : 6.0;
          ASSERT_EQ(outputs.rowwise.scale(block / 4, block % 4 * 16), expected.scale(to)) << block;
          (to == 4.0 ? fours : sixes) += 1;
        }
      }
      EXPECT_GT(fours, 50);
      EXPECT_GT(sixes, 50);
    }
  }
}

// All of amax 6 exactly, or all zeros: both errors are 0 or alike, and 6 wins.
TEST(QuantizeNvfp4, FourOverSixBreaksTiesForSix) {
  Matrix input(DType::kFloat32, 2, 16);
  for (int i = 0; i < 16; ++i) {
    input.set(i, i == 0 ? 6.0F : 0.0F);
    input.set(16 + i, 0.0F);
  }
  const Nvfp4Case c{.four_over_six = FourOverSix::kMeanAbsoluteError, .e4m3_max = 256.0F};
  Nvfp4Outputs outputs(input, c);
  quantize(input, c, outputs);
  EXPECT_EQ(kE4M3.value(outputs.rowwise.scale(0, 0)), 256.0);
  EXPECT_EQ(outputs.rowwise.code(0, 0), 7);
  EXPECT_EQ(outputs.rowwise.scale(1, 0), 0);
}

// The number of roundings up of n elements, all halfway between 2 and 3, is binomial: within six
// standard deviations of n / 2.
TEST(QuantizeNvfp4, StochasticRoundingIsUnbiasedAndDiffersByCopyAndSeed) {
  constexpr int64_t kSize = 256;
  Matrix input(DType::kBFloat16, kSize, kSize);
  for (int64_t i = 0; i < input.numel(); ++i) {
    input.set(i, i % 16 == 0 || i / kSize % 16 == 0 ? 6.0F : 2.5F);  // each block has amax 6
  }
  Nvfp4Case c{.is_stochastic = true};
  Nvfp4Outputs first(input, c), again(input, c), other(input, c);
  quantize(input, c, first);
  quantize(input, c, again);
  c.seed += 1;
  quantize(input, c, other);
  expect_same_outputs(again, first, "same seed");
  int64_t count = 0, ups = 0, column_ups = 0, same_in_copies = 0, same_in_seeds = 0;
  for (int64_t row = 0; row < kSize; ++row) {
    for (int64_t col = 0; col < kSize; ++col) {
      const uint8_t code = first.rowwise.code(row, col);
      if (input.get(row * kSize + col) == 6.0) {
        ASSERT_EQ(code, 7);
        continue;
      }
      ASSERT_TRUE(code == 4 || code == 5);
      count += 1;
      ups += code == 5;
      column_ups += first.columnwise.code(row, col) == 5;
      same_in_copies += code == first.columnwise.code(row, col);
      same_in_seeds += code == other.rowwise.code(row, col);
    }
  }
  const double half = static_cast<double>(count) / 2;
  const double bound = 6 * std::sqrt(static_cast<double>(count)) / 2;
  for (const int64_t got : {ups, column_ups, same_in_copies, same_in_seeds}) {
    EXPECT_NEAR(static_cast<double>(got), half, bound);
  }
}

TEST(QuantizeNvfp4, ASeedInMemoryTakesThePlaceOfTheNumber) {
  Matrix input(DType::kBFloat16, 20, 40);
  te::testing::fill_normal(input, 2);
  Nvfp4Case c{.is_stochastic = true, .seed = 3};
  Nvfp4Outputs expected(input, c), got(input, c);
  quantize(input, c, expected);
  const uint64_t seed = c.seed;
  c.seed = 4;
  te::QuantizeNvfp4Args args = got.args(input, c);
  args.device_seed = &seed;
  te::compute_nvfp4_amax(args, {});
  te::quantize_nvfp4(args, {});
  expect_same_outputs(got, expected, "a seed in memory");
}

// The first rows of a larger tensor: positions, not places in memory, choose the random bits.
TEST(QuantizeNvfp4, StochasticRoundingDependsOnThePositionOnly) {
  Matrix large(DType::kBFloat16, 48, 40);
  te::testing::fill_normal(large, 2);
  Matrix small(DType::kBFloat16, 20, 24);
  for (int64_t i = 0; i < small.numel(); ++i) {
    small.set(i, static_cast<float>(large.get(i / 24 * 40 + i % 24)));
  }
  const Nvfp4Case c{.is_stochastic = true};
  Nvfp4Outputs of_large(large, c), of_small(small, c);
  for (auto* outputs : {&of_large, &of_small}) {
    outputs->rowwise.amax[0] = 5.0F;
    outputs->columnwise.amax[0] = 5.0F;
  }
  te::quantize_nvfp4(of_large.args(large, c), {});
  te::quantize_nvfp4(of_small.args(small, c), {});
  for (int64_t row = 0; row < 20; ++row) {
    for (int64_t col = 0; col < 16; ++col) {  // whole blocks of both
      ASSERT_EQ(of_small.rowwise.code(row, col), of_large.rowwise.code(row, col));
      if (row < 16) {
        ASSERT_EQ(of_small.columnwise.code(col, row), of_large.columnwise.code(col, row));
      }
    }
  }
}

TEST(QuantizeNvfp4, NoopFlagLeavesEverythingUnwritten) {
  Matrix input(DType::kBFloat16, 20, 30);
  fill_random(input, 2);
  const Nvfp4Case c;
  for (const float flag : {1.0F, 0.0F}) {
    Nvfp4Outputs untouched(input, c), outputs(input, c);
    QuantizeNvfp4Args args = outputs.args(input, c);
    args.noop = &flag;
    te::compute_nvfp4_amax(args, {});
    te::quantize_nvfp4(args, {});
    if (flag != 0.0F) {
      expect_same_outputs(outputs, untouched, "noop");
    } else {
      EXPECT_FALSE(te::testing::same_bytes(outputs.rowwise.data, untouched.rowwise.data));
    }
  }
}

TEST(ComputeNvfp4Amax, NeedsNoData) {
  Matrix input(DType::kFloat32, 3, 2);
  const float values[] = {1.0F, -3.0F, std::nanf(""), 0.5F, 2.0F, 2.0F};
  for (int i = 0; i < 6; ++i) {
    input.set(i, values[i]);
  }
  QuantizeNvfp4Args args;
  args.input = input.view();
  float rows[] = {-1.0F, -1.0F, -1.0F};
  float amax = -1.0F;
  args.rowwise.scales.amax = rows;
  args.rowwise.scales.is_row_scaled = true;
  args.columnwise.scales.amax = &amax;
  te::compute_nvfp4_amax(args, {});
  EXPECT_EQ(rows[0], 3.0F);
  EXPECT_EQ(rows[1], 0.5F);
  EXPECT_EQ(rows[2], 2.0F);
  EXPECT_EQ(amax, 3.0F);
}

// Refusals: each names the op and the argument, and leaves the outputs alone.

struct Problem {
  Matrix input{DType::kBFloat16, 20, 30};
  Nvfp4Case options;
  Nvfp4Outputs outputs{input, options};
  QuantizeNvfp4Args args = outputs.args(input, options);
};

template <typename Error>
void expect_quantize_error(const char* text, const std::function<void(QuantizeNvfp4Args&)>& spoil) {
  Problem problem;
  spoil(problem.args);
  expect_error<Error>([&] { te::quantize_nvfp4(problem.args, {}); }, {"quantize_nvfp4", text});
  Nvfp4Outputs untouched(problem.input, problem.options);
  expect_same_outputs(problem.outputs, untouched, text);
}

TEST(QuantizeNvfp4Refuses, WrongTypesAndShapes) {
  expect_quantize_error<te::TypeError>("input has dtype int32",
                                       [](auto& args) { args.input.dtype = DType::kInt32; });
  expect_quantize_error<te::TypeError>("rowwise has dtype byte",
                                       [](auto& args) { args.rowwise.data.dtype = DType::kByte; });
  expect_quantize_error<te::TypeError>("columnwise scales have dtype float32", [](auto& args) {
    args.columnwise.scales.dtype = DType::kFloat32;
  });
  expect_quantize_error<te::ValueError>("rowwise has shape [20, 31]",
                                        [](auto& args) { args.rowwise.data.cols = 31; });
  expect_quantize_error<te::ValueError>("columnwise has shape [20, 30]", [](auto& args) {
    args.columnwise.data.rows = 20;
    args.columnwise.data.cols = 30;
  });
  expect_quantize_error<te::ValueError>("rowwise has blocks of 16 x 16",
                                        [](auto& args) { args.rowwise.scales.block_rows = 16; });
  expect_quantize_error<te::ValueError>("columnwise scales have strides",
                                        [](auto& args) { args.columnwise.scales.row_stride = 0; });
  expect_quantize_error<te::ValueError>("rowwise scales have e4m3_max 300",
                                        [](auto& args) { args.rowwise.scales.e4m3_max = 300.0F; });
}

TEST(QuantizeNvfp4Refuses, MissingMemory) {
  expect_quantize_error<te::ValueError>("input has no data",
                                        [](auto& args) { args.input.data = nullptr; });
  expect_quantize_error<te::ValueError>("neither rowwise nor columnwise", [](auto& args) {
    args.rowwise = {};
    args.columnwise = {};
  });
  expect_quantize_error<te::ValueError>("rowwise has no data",
                                        [](auto& args) { args.rowwise.data.data = nullptr; });
  expect_quantize_error<te::ValueError>("rowwise scales have no data",
                                        [](auto& args) { args.rowwise.scales.data = nullptr; });
  expect_quantize_error<te::ValueError>("columnwise scales have no amax",
                                        [](auto& args) { args.columnwise.scales.amax = nullptr; });
}

TEST(QuantizeNvfp4Refuses, OptionsThatExcludeEachOther) {
  const auto four_over_six = [](auto& args) {
    args.four_over_six = FourOverSix::kMeanAbsoluteError;
  };
  const auto row_scaled = [](auto& args) { args.rowwise.scales.is_row_scaled = true; };
  const auto with = [](const auto& first, const auto& second) {
    return [=](QuantizeNvfp4Args& args) {
      first(args);
      second(args);
    };
  };
  const auto hadamard = [](auto& args) { args.has_hadamard = true; };
  const auto stochastic = [](auto& args) { args.is_stochastic = true; };
  const auto tiles = [](auto& args) { args.has_square_tiles = true; };
  const char* both = "the two exclude each other";
  expect_quantize_error<te::ValueError>(both, with(four_over_six, hadamard));
  expect_quantize_error<te::ValueError>(both, with(four_over_six, stochastic));
  expect_quantize_error<te::ValueError>(both, with(row_scaled, hadamard));
  expect_quantize_error<te::ValueError>(both, with(row_scaled, stochastic));
  expect_quantize_error<te::ValueError>(both, with(row_scaled, tiles));
  expect_quantize_error<te::ValueError>("columnwise scales are row-scaled", [](auto& args) {
    args.columnwise.scales.is_row_scaled = true;
  });
  expect_quantize_error<te::ValueError>(
      "four_over_six is 3", [](auto& args) { args.four_over_six = static_cast<FourOverSix>(3); });
}

TEST(QuantizeNvfp4Refuses, AnotherDeviceAndListsEveryCandidate) {
  Problem problem;
  const te::Context cuda{.device = te::DeviceType::kCUDA};
  expect_error<te::NotImplementedError>([&] { te::quantize_nvfp4(problem.args, cuda); },
                                        {"quantize_nvfp4", "cuda: ", "reference: "});
  expect_error<te::NotImplementedError>([&] { te::compute_nvfp4_amax(problem.args, cuda); },
                                        {"compute_nvfp4_amax", "cuda: ", "reference: "});
}

TEST(ComputeNvfp4AmaxRefuses, WithoutAnyAmaxAndWrongOptions) {
  Problem problem;
  QuantizeNvfp4Args args = problem.args;
  args.rowwise.scales.amax = nullptr;
  expect_error<te::ValueError>([&] { te::compute_nvfp4_amax(args, {}); },
                               {"compute_nvfp4_amax", "rowwise scales have no amax"});
  args.rowwise = {};
  args.columnwise = {};
  expect_error<te::ValueError>([&] { te::compute_nvfp4_amax(args, {}); },
                               {"neither rowwise nor columnwise scales have an amax"});
  args = problem.args;
  args.rowwise.scales.is_row_scaled = true;
  args.has_hadamard = true;
  expect_error<te::ValueError>([&] { te::compute_nvfp4_amax(args, {}); },
                               {"has_hadamard", "row-scaled"});
}

}  // namespace
