// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// quantize_fp8_blocks, quantize_mxfp8 and dequantize_blocks: the reference against FP64 formulas
// written out in helpers/block_scaled.h, and every refusal.
#include <gtest/gtest.h>
#include <transformer_engine/block_scaling.h>
#include <transformer_engine/error.h>

#include <functional>
#include <string>

#include "helpers/block_scaled.h"
#include "helpers/errors.h"
#include "reference/block_scaling.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::TensorView;
using te::testing::BlockCopy;
using te::testing::BlockKind;
using te::testing::expect_error;
using te::testing::fill_random;
using te::testing::fill_random_bytes;
using te::testing::Matrix;
using te::testing::same_bytes;
using te::testing::same_copy;

constexpr DType kInputs[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
// Empty, one row, one column, one less and one more than a block, odd, prime.
constexpr int64_t kShapes[][2] = {{0, 0},     {0, 7},     {5, 0},     {1, 1},
                                  {1, 300},   {300, 1},   {31, 33},   {32, 32},
                                  {127, 129}, {128, 128}, {129, 127}, {67, 257}};

// Every BF16 code; with a stride of 1 a block holds numbers of like size, with another one numbers
// of every size.
Matrix every_bf16(int stride) {
  Matrix input(DType::kBFloat16, 256, 256);
  for (int i = 0; i < 65536; ++i) {
    input.data<uint16_t>()[i] = static_cast<uint16_t>(i * stride);
  }
  return input;
}

// BF16 codes without infinity and NaN, so that blocks have useful scales.
Matrix every_bf16_number(int stride) {
  Matrix input = every_bf16(stride);
  for (int64_t i = 0; i < input.numel(); ++i) {
    uint16_t& bits = input.data<uint16_t>()[i];
    bits = static_cast<uint16_t>((bits & 0x7F80) == 0x7F80 ? bits & 0xBFFF : bits);
  }
  return input;
}

std::vector<Matrix> interesting_inputs() {
  std::vector<Matrix> inputs;
  for (const int stride : {1, 4099, 257}) {
    inputs.push_back(every_bf16(stride));
    inputs.push_back(every_bf16_number(stride));
  }
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : kInputs) {
      inputs.emplace_back(dtype, rows, cols);
      fill_random(inputs.back(), 3);
    }
  }
  return inputs;
}

TEST(QuantizeFp8BlocksReference, FollowsTheFormula) {
  for (Matrix& input : interesting_inputs()) {
    for (const DType format : kFormats) {
      for (const bool power_of_two : {false, true}) {
        for (const BlockKind kind : {BlockKind::kFp8Rows, BlockKind::kFp8Tiles}) {
          BlockCopy rowwise(kind, format, input.rows(), input.cols(), power_of_two);
          BlockCopy columnwise(kind, format, input.cols(), input.rows(), power_of_two);
          BlockCopy expected_rowwise = rowwise;
          BlockCopy expected_columnwise = columnwise;
          const te::testing::Fp8BlockRule rule{.format = format, .power_of_two = power_of_two};
          fill_expected_fp8(expected_rowwise, input, false, rule);
          fill_expected_fp8(expected_columnwise, input, true, rule);
          te::reference::quantize_fp8_blocks(
              {.input = input.view(), .rowwise = rowwise.view(), .columnwise = columnwise.view()},
              {});
          ASSERT_TRUE(same_copy(rowwise, expected_rowwise))
              << input.rows() << " x " << input.cols();
          ASSERT_TRUE(same_copy(columnwise, expected_columnwise))
              << input.rows() << " x " << input.cols();
        }
      }
    }
  }
}

TEST(QuantizeMxfp8Reference, FollowsTheFormula) {
  for (Matrix& input : interesting_inputs()) {
    for (const DType format : kFormats) {
      for (const bool has_square_tiles : {false, true}) {
        BlockCopy rowwise(BlockKind::kMxRows, format, input.rows(), input.cols());
        BlockCopy columnwise(BlockKind::kMxColumns, format, input.rows(), input.cols());
        BlockCopy expected_rowwise = rowwise;
        BlockCopy expected_columnwise = columnwise;
        fill_expected_mxfp8(expected_rowwise, input, has_square_tiles);
        fill_expected_mxfp8(expected_columnwise, input, has_square_tiles);
        te::reference::quantize_mxfp8({.input = input.view(),
                                       .rowwise = rowwise.view(),
                                       .columnwise = columnwise.view(),
                                       .has_square_tiles = has_square_tiles},
                                      {});
        ASSERT_TRUE(same_copy(rowwise, expected_rowwise)) << input.rows() << " x " << input.cols();
        ASSERT_TRUE(same_copy(columnwise, expected_columnwise))
            << input.rows() << " x " << input.cols();
      }
    }
  }
}

// One block of FP32 numbers, the rest zeros.
struct BlockCase {
  std::vector<float> values;
  double scale_inv;            // of the block
  std::vector<uint8_t> codes;  // E4M3
};

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Matrix zeros(DType dtype, int64_t cols) {
  Matrix input(dtype, 1, cols);
  std::memset(input.data<void>(), 0, input.size_bytes());
  return input;
}

Matrix block_of(const BlockCase& block, int64_t cols) {
  Matrix input = zeros(DType::kFloat32, cols);
  for (size_t i = 0; i < block.values.size(); ++i) {
    input.set(static_cast<int64_t>(i), block.values[i]);
  }
  return input;
}

void expect_codes(BlockCopy& copy, const BlockCase& block) {
  for (size_t i = 0; i < block.codes.size(); ++i) {
    EXPECT_EQ(copy.data().data<uint8_t>()[i], block.codes[i]) << "element " << i;
  }
}

TEST(QuantizeFp8Blocks, SpecialBlocksAreAsWrittenDown) {
  const BlockCase cases[] = {
      {{0.0F, -0.0F}, 1.0, {0x00, 0x80}},                // amax 0: scale 1
      {{448.0F, -224.0F}, 1.0, {0x7E, 0xF6}},            // the format's own maximum
      {{kInf, 1.0F, -kInf}, 1.0, {0x7E, 0x38, 0xFE}},    // Inf: scale 1, saturates
      {{kNaN, 896.0F, -1.0F}, 2.0, {0x7F, 0x7E, 0xB0}},  // NaN has no part in amax
      {{kNaN, -kNaN}, 1.0, {0x7F, 0x7F}},                // nothing but NaN
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    Matrix input = block_of(cases[i], 128);
    BlockCopy copy(BlockKind::kFp8Rows, DType::kFloat8E4M3, 1, 128);
    te::quantize_fp8_blocks({.input = input.view(), .rowwise = copy.view()}, {});
    EXPECT_EQ(static_cast<double>(copy.scales().data<float>()[0]), cases[i].scale_inv) << i;
    expect_codes(copy, cases[i]);
  }
}

// The scale where 448 / amax is beyond FP32: the largest number of the input's type.
TEST(QuantizeFp8Blocks, AnOverflowingScaleIsTheLargestNumberOfTheInputType) {
  for (const bool power_of_two : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Matrix input = zeros(dtype, 128);
      input.set(0, 0x1p-133F);
      BlockCopy copy(BlockKind::kFp8Rows, DType::kFloat8E4M3, 1, 128, power_of_two);
      te::quantize_fp8_blocks({.input = input.view(), .rowwise = copy.view()}, {});
      const double largest = power_of_two               ? 0x1p127
                             : dtype == DType::kFloat32 ? 0x1.fffffep127
                                                        : 0x1.fep127;
      EXPECT_EQ(copy.scales().data<float>()[0], static_cast<float>(1.0 / largest));
      EXPECT_EQ(copy.data().data<uint8_t>()[0], power_of_two ? 0x08 : 0x10);  // 2^-6 or 2^-5
    }
  }
}

TEST(QuantizeFp8Blocks, EpsilonRaisesTheAmaxOfABlock) {
  Matrix input = zeros(DType::kFloat32, 256);
  input.set(0, 0.25F);
  input.set(128, 896.0F);
  BlockCopy copy(BlockKind::kFp8Rows, DType::kFloat8E4M3, 1, 256);
  te::quantize_fp8_blocks({.input = input.view(), .rowwise = copy.view(), .epsilon = 0.5F}, {});
  EXPECT_EQ(copy.scales().data<float>()[0], 1.0F / 896.0F);
  EXPECT_EQ(copy.scales().data<float>()[4], 2.0F);
  EXPECT_EQ(copy.data().data<uint8_t>()[0], 0x76);  // 224
}

TEST(QuantizeMxfp8, SpecialBlocksAreAsWrittenDown) {
  const struct {
    BlockCase block;
    int code;
  } cases[] = {
      {{{0.0F, -0.0F}, 0, {0x00, 0x80}}, 0},
      {{{448.0F, -224.0F}, 0, {0x7E, 0xF6}}, 127},  // exactly the maximum: scale 1
      {{{449.0F, 1.0F}, 0, {0x76, 0x30}}, 128},     // beyond it: scale 2; 224.5 to 224
      {{{kInf, 0x1p127F, 1.0F, -kInf}, 0, {0x7E, 0x38, 0x00, 0xFE}}, 254},
      {{{kNaN, 448.0F}, 0, {0x7F, 0x7E}}, 127},  // NaN has no part in amax
      {{{kNaN, -kNaN}, 0, {0x7F, 0x7F}}, 0},
      {{{0x1p-133F, 0x1p-149F}, 0, {0x08, 0x00}}, 0},  // times 2^127: 2^-6, 2^-22
      {{{0x1.fffffep127F}, 0, {0x78}}, 247},           // 2^128 / 2^120 = 256
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    Matrix input = block_of(cases[i].block, 32);
    BlockCopy copy(BlockKind::kMxRows, DType::kFloat8E4M3, 1, 32);
    te::quantize_mxfp8({.input = input.view(), .rowwise = copy.view()}, {});
    EXPECT_EQ(copy.scales().data<uint8_t>()[0], cases[i].code) << i;
    expect_codes(copy, cases[i].block);
  }
}

TEST(QuantizeMxfp8, TheTilesOfBothCopiesShareTheirCodes) {
  Matrix input(DType::kBFloat16, 70, 45);
  fill_random(input, 5);
  BlockCopy rowwise(BlockKind::kMxRows, DType::kFloat8E4M3, 70, 45);
  BlockCopy columnwise(BlockKind::kMxColumns, DType::kFloat8E4M3, 70, 45);
  te::quantize_mxfp8({.input = input.view(),
                      .rowwise = rowwise.view(),
                      .columnwise = columnwise.view(),
                      .has_square_tiles = true},
                     {});
  EXPECT_TRUE(same_bytes(rowwise.data(), columnwise.data()));
}

template <typename Args>
void expect_noop(const Args& filled, BlockCopy& rowwise, BlockCopy& columnwise,
                 void (*op)(const Args&, const te::Context&)) {
  BlockCopy untouched_rowwise = rowwise;
  BlockCopy untouched_columnwise = columnwise;
  for (const float flag : {1.0F, -1.0F, 0.0F}) {
    Args args = filled;
    args.noop = &flag;
    op(args, {});
    EXPECT_EQ(static_cast<bool>(same_copy(rowwise, untouched_rowwise)), flag != 0.0F);
    EXPECT_EQ(static_cast<bool>(same_copy(columnwise, untouched_columnwise)), flag != 0.0F);
  }
}

TEST(QuantizeBlocks, TheNoopFlagLeavesEverythingUnwritten) {
  Matrix input(DType::kBFloat16, 70, 300);
  fill_random(input, 2);
  BlockCopy rowwise(BlockKind::kFp8Rows, DType::kFloat8E4M3, 70, 300);
  BlockCopy columnwise(BlockKind::kFp8Tiles, DType::kFloat8E4M3, 300, 70);
  expect_noop<te::QuantizeFp8BlocksArgs>(
      {.input = input.view(), .rowwise = rowwise.view(), .columnwise = columnwise.view()}, rowwise,
      columnwise, te::quantize_fp8_blocks);
  BlockCopy mx_rowwise(BlockKind::kMxRows, DType::kFloat8E4M3, 70, 300);
  BlockCopy mx_columnwise(BlockKind::kMxColumns, DType::kFloat8E4M3, 70, 300);
  expect_noop<te::QuantizeMxfp8Args>(
      {.input = input.view(), .rowwise = mx_rowwise.view(), .columnwise = mx_columnwise.view()},
      mx_rowwise, mx_columnwise, te::quantize_mxfp8);
}

// Every code under scales of every size, the product rounded to FP32 and then to the output.
TEST(DequantizeBlocks, EveryFp8CodeTimesItsScale) {
  for (const DType format : kFormats) {
    for (const DType dtype : kInputs) {
      BlockCopy copy(BlockKind::kFp8Rows, format, 9, 256);
      const float scales[] = {1.0F, 0.37F, 0x1p-140F, 1e30F, -1.5F, 0.0F, 0x1p-20F, 3e4F, 0x1p127F};
      for (int64_t i = 0; i < copy.data().numel(); ++i) {
        copy.data().data<uint8_t>()[i] = static_cast<uint8_t>(i);
      }
      for (int64_t row = 0; row < 9; ++row) {
        copy.scales().data<float>()[row] = copy.scales().data<float>()[12 + row] = scales[row];
      }
      Matrix output(dtype, 9, 256);
      te::dequantize_blocks({.input = copy.view(), .output = output.view()}, {});
      for (int64_t i = 0; i < output.numel(); ++i) {
        const double q = te::testing::fp8_description(format).value(static_cast<uint32_t>(i % 256));
        const auto product = static_cast<float>(q * static_cast<double>(scales[i / 256]));
        Matrix expected(dtype, 1, 1);
        expected.set(0, product);
        const double want = expected.get(0);
        const double got = output.get(i);
        ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
            << "code " << i % 256 << " scale " << scales[i / 256] << ": " << got << ", " << want;
      }
    }
  }
}

TEST(DequantizeBlocks, EveryE8M0Code) {
  BlockCopy copy(BlockKind::kMxColumns, DType::kFloat8E4M3, 32, 256);
  std::memset(copy.data().data<void>(), 0x3C, copy.data().size_bytes());  // 1.5
  for (int64_t col = 0; col < 256; ++col) {
    copy.scales().data<uint8_t>()[col] = static_cast<uint8_t>(col);
  }
  Matrix output(DType::kFloat32, 32, 256);
  te::dequantize_blocks({.input = copy.view(), .output = output.view()}, {});
  for (int64_t i = 0; i < output.numel(); ++i) {
    const int code = static_cast<int>(i % 256);
    if (code == 255) {
      EXPECT_TRUE(std::isnan(output.get(i)));
    } else {
      ASSERT_EQ(output.get(i), std::ldexp(1.5, code - 127)) << code;
    }
  }
}

// Every pair of an E2M1 element and an E4M3 scale, in both halves of a byte.
TEST(DequantizeBlocks, EveryE2M1CodeUnderEveryE4M3Scale) {
  constexpr int64_t kCols = 16 * 16 + 3;  // the last block has three elements
  Matrix codes(DType::kByte, 256, 17 * 8);
  Matrix scales(DType::kByte, 256, 17);
  const auto element = [](int64_t row, int64_t col) { return (row + col * 7 + col / 16) & 15; };
  for (int64_t row = 0; row < 256; ++row) {
    for (int64_t col = 0; col < 17 * 16; col += 2) {
      codes.data<uint8_t>()[row * codes.cols() + col / 2] =
          static_cast<uint8_t>(element(row, col) | (element(row, col + 1) << 4));
    }
    for (int64_t block = 0; block < 17; ++block) {
      scales.data<uint8_t>()[row * 17 + block] = static_cast<uint8_t>(row + block);
    }
  }
  for (const bool is_row_scaled : {false, true}) {
    std::vector<float> amax(256);
    for (size_t i = 0; i < amax.size(); ++i) {
      amax[i] = 0.7F + 3.0F * static_cast<float>(i);
    }
    for (const float e4m3_max : {448.0F, 256.0F}) {
      for (const DType dtype : kInputs) {
        Matrix output(dtype, 256, kCols);
        const te::BlockScaledMatrix input{.data = {.data = codes.data<void>(),
                                                   .dtype = DType::kFloat4E2M1,
                                                   .rows = 256,
                                                   .cols = kCols},
                                          .scales = {.data = scales.data<void>(),
                                                     .dtype = DType::kFloat8E4M3,
                                                     .block_cols = 16,
                                                     .row_stride = 17,
                                                     .col_stride = 1,
                                                     .amax = amax.data(),
                                                     .is_row_scaled = is_row_scaled,
                                                     .e4m3_max = e4m3_max}};
        te::dequantize_blocks({.input = input, .output = output.view()}, {});
        for (int64_t i = 0; i < output.numel(); ++i) {
          const int64_t row = i / kCols;
          const int64_t col = i % kCols;
          const double q = te::testing::kE2M1.value(static_cast<uint32_t>(element(row, col)));
          const double d = te::testing::kE4M3.value(static_cast<uint32_t>(row + col / 16) & 0xFF);
          const auto tensor = static_cast<float>(
              static_cast<double>(amax[is_row_scaled ? static_cast<size_t>(row) : 0]) /
              (6.0 * static_cast<double>(e4m3_max)));
          Matrix expected(dtype, 1, 1);
          expected.set(0, static_cast<float>(q * d * static_cast<double>(tensor)));
          const double want = expected.get(0);
          const double got = output.get(i);
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
              << "row " << row << " col " << col << ": " << got << ", " << want;
        }
      }
    }
  }
}

// Through the public entries: tiles and threads. Beyond the size of a tile in both directions, and
// beyond the size from which stores go around the caches.
constexpr int64_t kLargeShapes[][2] = {{300, 1100}, {65, 4200}, {513, 257},
                                       {1, 9000},   {9000, 1},  {520, 4096}};

// Compares each choice of copies, on as many threads, with both copies of the reference.
template <typename Args>
void expect_equal_to_reference(Args args, BlockCopy rowwise, BlockCopy columnwise,
                               void (*op)(const Args&, const te::Context&),
                               void (*reference)(const Args&, const te::Context&)) {
  const BlockCopy untouched_rowwise = rowwise;
  const BlockCopy untouched_columnwise = columnwise;
  args.rowwise = rowwise.view();
  args.columnwise = columnwise.view();
  reference(args, {});
  for (const int choice : {1, 2, 3}) {
    BlockCopy got_rowwise = untouched_rowwise;
    BlockCopy got_columnwise = untouched_columnwise;
    args.rowwise = (choice & 1) != 0 ? got_rowwise.view() : te::BlockScaledMatrix{};
    args.columnwise = (choice & 2) != 0 ? got_columnwise.view() : te::BlockScaledMatrix{};
    op(args, {.num_threads = choice});
    ASSERT_TRUE((choice & 1) == 0 || same_copy(got_rowwise, rowwise));
    ASSERT_TRUE((choice & 2) == 0 || same_copy(got_columnwise, columnwise));
  }
}

TEST(QuantizeFp8Blocks, EqualsTheReferenceForAllThreadsAndCopies) {
  for (const auto& [rows, cols] : kLargeShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
    Matrix input(DType::kBFloat16, rows, cols);
    fill_random(input, 11);
    for (const BlockKind kind : {BlockKind::kFp8Rows, BlockKind::kFp8Tiles}) {
      expect_equal_to_reference<te::QuantizeFp8BlocksArgs>(
          {.input = input.view(), .epsilon = 1e-3F},
          BlockCopy(kind, DType::kFloat8E4M3, rows, cols, true),
          BlockCopy(kind, DType::kFloat8E4M3, cols, rows, true), te::quantize_fp8_blocks,
          te::reference::quantize_fp8_blocks);
    }
  }
}

TEST(QuantizeMxfp8, EqualsTheReferenceForAllThreadsAndCopies) {
  for (const auto& [rows, cols] : kLargeShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
    Matrix input(DType::kBFloat16, rows, cols);
    fill_random(input, 12);
    for (const bool has_square_tiles : {false, true}) {
      expect_equal_to_reference<te::QuantizeMxfp8Args>(
          {.input = input.view(), .has_square_tiles = has_square_tiles},
          BlockCopy(BlockKind::kMxRows, DType::kFloat8E5M2, rows, cols),
          BlockCopy(BlockKind::kMxColumns, DType::kFloat8E5M2, rows, cols), te::quantize_mxfp8,
          te::reference::quantize_mxfp8);
    }
  }
}

TEST(DequantizeBlocks, EqualsTheReferenceForAllThreads) {
  for (const auto& [rows, cols] : kLargeShapes) {
    for (const BlockKind kind : {BlockKind::kFp8Rows, BlockKind::kMxColumns}) {
      BlockCopy copy(kind, DType::kFloat8E4M3, rows, cols);
      fill_random_bytes(copy.data(), 13);
      std::memset(copy.scales().data<void>(), 0x3F, copy.scales().size_bytes());
      Matrix expected(DType::kBFloat16, rows, cols);
      te::reference::dequantize_blocks({.input = copy.view(), .output = expected.view()}, {});
      for (const int threads : {1, 2, 3}) {
        Matrix got(DType::kBFloat16, rows, cols);
        te::dequantize_blocks({.input = copy.view(), .output = got.view()},
                              {.num_threads = threads});
        ASSERT_TRUE(same_bytes(got, expected)) << rows << " x " << cols;
      }
    }
  }
}

// Refusals: each names the op and the argument, and leaves the outputs alone.

struct Fp8Problem {
  Matrix input{DType::kBFloat16, 4, 130};
  BlockCopy rowwise{BlockKind::kFp8Rows, DType::kFloat8E4M3, 4, 130};
  BlockCopy columnwise{BlockKind::kFp8Tiles, DType::kFloat8E4M3, 130, 4};
  te::QuantizeFp8BlocksArgs args;

  Fp8Problem() {
    fill_random(input, 1);
    args = {.input = input.view(), .rowwise = rowwise.view(), .columnwise = columnwise.view()};
  }
  void run() { te::quantize_fp8_blocks(args, {}); }
};

struct MxProblem {
  Matrix input{DType::kBFloat16, 40, 70};
  BlockCopy rowwise{BlockKind::kMxRows, DType::kFloat8E4M3, 40, 70};
  BlockCopy columnwise{BlockKind::kMxColumns, DType::kFloat8E4M3, 40, 70};
  te::QuantizeMxfp8Args args;

  MxProblem() {
    fill_random(input, 1);
    args = {.input = input.view(), .rowwise = rowwise.view(), .columnwise = columnwise.view()};
  }
  void run() { te::quantize_mxfp8(args, {}); }
};

template <typename Error, typename Problem, typename Spoil>
void expect_refusal(std::initializer_list<const char*> words, const Spoil& spoil) {
  Problem problem;
  BlockCopy rowwise = problem.rowwise;
  BlockCopy columnwise = problem.columnwise;
  spoil(problem.args);
  expect_error<Error>([&] { problem.run(); }, words);
  EXPECT_TRUE(same_copy(problem.rowwise, rowwise));
  EXPECT_TRUE(same_copy(problem.columnwise, columnwise));
}

TEST(QuantizeFp8BlocksRefuses, WrongTypes) {
  expect_refusal<te::TypeError, Fp8Problem>({"quantize_fp8_blocks", "input has dtype int32"},
                                            [](auto& args) { args.input.dtype = DType::kInt32; });
  expect_refusal<te::TypeError, Fp8Problem>({"rowwise has dtype byte"}, [](auto& args) {
    args.rowwise.data.dtype = args.columnwise.data.dtype = DType::kByte;
  });
  expect_refusal<te::TypeError, Fp8Problem>(
      {"rowwise has dtype float8_e4m3 and columnwise float8_e5m2"},
      [](auto& args) { args.columnwise.data.dtype = DType::kFloat8E5M2; });
  expect_refusal<te::TypeError, Fp8Problem>(
      {"columnwise scales have dtype float8_e8m0", "float32 is required"},
      [](auto& args) { args.columnwise.scales.dtype = DType::kFloat8E8M0; });
}

TEST(QuantizeFp8BlocksRefuses, WrongShapesAndBlocks) {
  expect_refusal<te::ValueError, Fp8Problem>({"rowwise has shape [4, 131]"},
                                             [](auto& args) { args.rowwise.data.cols = 131; });
  expect_refusal<te::ValueError, Fp8Problem>({"columnwise has shape [4, 130]"}, [](auto& args) {
    args.columnwise.data.rows = 4;
    args.columnwise.data.cols = 130;
  });
  expect_refusal<te::ValueError, Fp8Problem>(
      {"rowwise has blocks of 64 x 128", "128 x 128 is required"},
      [](auto& args) { args.rowwise.scales.block_rows = 64; });
  expect_refusal<te::ValueError, Fp8Problem>(
      {"rowwise has blocks of 1 x 32", "1 x 128 is required"},
      [](auto& args) { args.rowwise.scales.block_cols = 32; });
  expect_refusal<te::ValueError, Fp8Problem>(
      {"rowwise scales have strides 1 and 0"},
      [](auto& args) { args.rowwise.scales.col_stride = 0; });
}

TEST(QuantizeFp8BlocksRefuses, MissingCopiesAndMemory) {
  expect_refusal<te::ValueError, Fp8Problem>({"neither rowwise nor columnwise"}, [](auto& args) {
    args.rowwise = {};
    args.columnwise = {};
  });
  expect_refusal<te::ValueError, Fp8Problem>({"rowwise has no data"},
                                             [](auto& args) { args.rowwise.data.data = nullptr; });
  expect_refusal<te::ValueError, Fp8Problem>(
      {"rowwise scales have no data"}, [](auto& args) { args.rowwise.scales.data = nullptr; });
  expect_refusal<te::ValueError, Fp8Problem>({"epsilon is -1"},
                                             [](auto& args) { args.epsilon = -1.0F; });
  expect_refusal<te::ValueError, Fp8Problem>({"epsilon is nan"},
                                             [](auto& args) { args.epsilon = kNaN; });
}

TEST(QuantizeFp8BlocksRefuses, AnotherDevice) {
  Fp8Problem problem;
  expect_error<te::NotImplementedError>(
      [&] { te::quantize_fp8_blocks(problem.args, {.device = te::DeviceType::kCUDA}); },
      {"quantize_fp8_blocks", "cuda: this build has no CUDA backend", "reference: "});
}

TEST(QuantizeMxfp8Refuses, WrongTypesShapesAndBlocks) {
  expect_refusal<te::TypeError, MxProblem>({"quantize_mxfp8", "input has dtype byte"},
                                           [](auto& args) { args.input.dtype = DType::kByte; });
  expect_refusal<te::TypeError, MxProblem>(
      {"rowwise scales have dtype float32", "float8_e8m0 is required"},
      [](auto& args) { args.rowwise.scales.dtype = DType::kFloat32; });
  expect_refusal<te::ValueError, MxProblem>({"columnwise has shape [70, 40]"}, [](auto& args) {
    args.columnwise.data.rows = 70;
    args.columnwise.data.cols = 40;
  });
  expect_refusal<te::ValueError, MxProblem>(
      {"columnwise has blocks of 1 x 32", "32 x 1 is required"},
      [](auto& args) { args.columnwise.scales = args.rowwise.scales; });
  expect_refusal<te::ValueError, MxProblem>({"neither rowwise nor columnwise"}, [](auto& args) {
    args.rowwise = {};
    args.columnwise = {};
  });
}

TEST(DequantizeBlocksRefuses, WrongTypesShapesAndMissingMemory) {
  BlockCopy copy(BlockKind::kMxRows, DType::kFloat8E4M3, 3, 70);
  Matrix output(DType::kFloat32, 3, 70);
  const te::DequantizeBlocksArgs good{.input = copy.view(), .output = output.view()};
  const auto refuse = [&]<typename Error>(std::initializer_list<const char*> words,
                                          const auto& spoil) {
    te::DequantizeBlocksArgs args = good;
    spoil(args);
    expect_error<Error>([&] { te::dequantize_blocks(args, {}); }, words);
  };
  refuse.operator()<te::TypeError>({"dequantize_blocks", "input has dtype byte"},
                                   [](auto& args) { args.input.data.dtype = DType::kByte; });
  refuse.operator()<te::TypeError>(
      {"input scales have dtype float8_e4m3", "float32 or float8_e8m0"},
      [](auto& args) { args.input.scales.dtype = DType::kFloat8E4M3; });
  refuse.operator()<te::TypeError>(
      {"input scales have dtype float8_e8m0", "float8_e4m3 is required for float4_e2m1"},
      [](auto& args) { args.input.data.dtype = DType::kFloat4E2M1; });
  refuse.operator()<te::ValueError>({"input scales have no amax"}, [](auto& args) {
    args.input.data.dtype = DType::kFloat4E2M1;
    args.input.scales.dtype = DType::kFloat8E4M3;
  });
  refuse.operator()<te::ValueError>({"e4m3_max 0"}, [&](auto& args) {
    args.input.data.dtype = DType::kFloat4E2M1;
    args.input.scales.dtype = DType::kFloat8E4M3;
    args.input.scales.amax = output.data<float>();
    args.input.scales.e4m3_max = 0.0F;
  });
  refuse.operator()<te::ValueError>({"blocks of 0 x 32"},
                                    [](auto& args) { args.input.scales.block_rows = 0; });
  refuse.operator()<te::ValueError>({"input scales have no data"},
                                    [](auto& args) { args.input.scales.data = nullptr; });
  refuse.operator()<te::ValueError>({"input has no data"},
                                    [](auto& args) { args.input.data.data = nullptr; });
  refuse.operator()<te::ValueError>({"output has shape [3, 69]"},
                                    [](auto& args) { args.output.cols = 69; });
  refuse.operator()<te::TypeError>({"output has dtype byte"},
                                   [](auto& args) { args.output.dtype = DType::kByte; });
}

}  // namespace
