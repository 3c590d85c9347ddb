// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scale rules, stochastic rounding and random positions of NVFP4 against explicit numbers and
// definitions in FP64.
#include "numerics/nvfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "helpers/formats.h"

namespace {

namespace numerics = transformer_engine::numerics;
using numerics::decode;
using numerics::E2M1;
using numerics::E4M3;
using numerics::encode_e2m1_stochastic;
using numerics::nvfp4_block_scale;
using numerics::nvfp4_block_scale_to_four;
using numerics::nvfp4_multiplier;
using numerics::nvfp4_scale;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

TEST(Nvfp4Scale, OfATensor) {
  struct Row {
    float amax, e4m3_max, scale;
  };
  const Row rows[] = {
      {6.0F, 448.0F, 448.0F},
      {2688.0F, 448.0F, 1.0F},
      {1536.0F, 256.0F, 1.0F},
      {3.0F, 256.0F, 512.0F},
      {7.0F, 448.0F, 384.0F},
      {0.0F, 448.0F, 1.0F},
      {HUGE_VALF, 448.0F, 1.0F},
      {kNaN, 448.0F, 1.0F},
      {0x1p-149F, 448.0F, kMax},  // the quotient overflows
      {0x1p-117F, 256.0F, 1536.0F * 0x1p117F},
  };
  for (const Row& row : rows) {
    const auto got = nvfp4_scale(row.amax, row.e4m3_max);
    EXPECT_EQ(got.scale, row.scale) << row.amax;
    EXPECT_EQ(got.over_six, row.scale * 0x1.555556p-3F);  // 1/6, rounded
    EXPECT_EQ(got.inverse, 1.0F / row.scale);
  }
}

TEST(Nvfp4Scale, OfABlock) {
  struct Row {
    float amax, block_amax;
    double to_six, to_four, multiplier;  // the scales' values
  };
  const Row rows[] = {
      {2688.0F, 2688.0F, 448.0, 448.0, 1.0 / 448.0},  // 672 saturates
      {2688.0F, 6.0F, 1.0, 1.5, 1.0},
      {2688.0F, 60.0F, 10.0, 15.0, 0.1F},
      {2688.0F, 6.375F, 1.0, 1.625, 1.0},  // ties: 1.0625 goes to 1, 1.59375 is above one
      {2688.0F, 0.0F, 0.0, 0.0, static_cast<double>(kMax)},
      {2688.0F, 0x1p-10F, 0.0, 0.0, static_cast<double>(kMax)},
      {2688.0F, 6 * 0x1p-9F, 0x1p-9, 0x1p-8, 512.0},  // 0.75 * 2^-8 is a tie of codes 1 and 2
      {2688.0F, 6 * 0x1.000004p-10F, 0x1p-9, 0x1p-9, 512.0},
      {HUGE_VALF, HUGE_VALF, 448.0, 448.0, 1.0 / 448.0},
      {HUGE_VALF, 6.0F, 1.0, 1.5, 1.0},
  };
  for (const Row& row : rows) {
    const auto tensor = nvfp4_scale(row.amax, 448.0F);
    const uint8_t to_six = nvfp4_block_scale(row.block_amax, tensor);
    const uint8_t to_four = nvfp4_block_scale_to_four(row.block_amax, tensor);
    EXPECT_EQ(transformer_engine::testing::kE4M3.value(to_six), row.to_six) << row.block_amax;
    EXPECT_EQ(transformer_engine::testing::kE4M3.value(to_four), row.to_four) << row.block_amax;
    EXPECT_EQ(nvfp4_multiplier(to_six, tensor), static_cast<float>(row.multiplier));
  }
}

// For every scale code and tensor scales across the range, an operation at a time in FP64, which
// rounds to the same FP32 number as the operation itself does.
TEST(Nvfp4Scale, MultiplierOfEveryScaleCode) {
  for (const float amax : {2688.0F, 1.0F, 3.3F, 1e-3F, 7.7e20F, 1e-30F, 3e38F, 1e-38F, 0x1p-149F}) {
    const auto tensor = nvfp4_scale(amax, 448.0F);
    for (int code = 0; code < 0x7F; ++code) {
      const auto inverse = static_cast<float>(1.0 / static_cast<double>(tensor.scale));
      const auto product = static_cast<float>(transformer_engine::testing::kE4M3.value(code) *
                                              static_cast<double>(inverse));
      const double quotient = 1.0 / static_cast<double>(product);
      const float expected =
          quotient > static_cast<double>(kMax) ? kMax : static_cast<float>(quotient);
      EXPECT_EQ(nvfp4_multiplier(static_cast<uint8_t>(code), tensor), expected) << code;
    }
  }
}

// Every random number, for values within and beyond the range.
TEST(Nvfp4Stochastic, EveryRandomNumberPicksANeighbourWithTheRightFrequency) {
  const auto values = transformer_engine::testing::kE2M1.finite_values();
  for (const float v : {0.1F, 0.25F, 0.3F, 0.999F, 1.25F, 1.9F, 2.5F, 3.14159F, 4.5F, 5.999F,
                        0x1p-17F, 0x1p-18F, 0.5F - 0x1p-25F}) {
    const auto above = std::upper_bound(values.begin(), values.end(), static_cast<double>(v));
    const double hi = *above;
    const double lo = *(above - 1);
    const double f = (static_cast<double>(v) - lo) / (hi - lo);
    int ups = 0;
    for (int random = 0; random < 65536; ++random) {
      const uint8_t code = encode_e2m1_stochastic(v, static_cast<uint16_t>(random));
      const double got = static_cast<double>(decode<E2M1>(code));
      ASSERT_TRUE(got == lo || got == hi) << v << " became " << got;
      ups += got == hi ? 1 : 0;
      ASSERT_EQ(encode_e2m1_stochastic(-v, static_cast<uint16_t>(random)), code | 0x08);
    }
    EXPECT_LE(std::abs(ups / 65536.0 - f), 0x1p-17) << v;
    if (f * 65536.0 == std::floor(f * 65536.0)) {
      EXPECT_EQ(ups / 65536.0, f) << v;
    }
  }
}

TEST(Nvfp4Stochastic, ExactValuesSpecialValuesAndSaturation) {
  for (int random = 0; random < 65536; random += random < 8 ? 1 : 101) {
    const auto bits = static_cast<uint16_t>(random);
    for (uint8_t code = 0; code < 16; ++code) {
      ASSERT_EQ(encode_e2m1_stochastic(decode<E2M1>(code), bits), code);
    }
    for (const float large : {6.0001F, 7.0F, 1e30F, HUGE_VALF}) {
      ASSERT_EQ(encode_e2m1_stochastic(large, bits), 0x07);
      ASSERT_EQ(encode_e2m1_stochastic(-large, bits), 0x0F);
    }
    ASSERT_EQ(encode_e2m1_stochastic(kNaN, bits), 0x07);
    ASSERT_EQ(encode_e2m1_stochastic(-kNaN, bits), 0x07);
    ASSERT_EQ(encode_e2m1_stochastic(0x1p-149F, bits), 0x00);
  }
  EXPECT_EQ(encode_e2m1_stochastic(0.3F, 0), 0x00);
  EXPECT_EQ(encode_e2m1_stochastic(0.3F, 65535), 0x01);
  // k = 2^16 * 2 * 0.125 = 2^14
  EXPECT_EQ(encode_e2m1_stochastic(0.125F, 65536 - 16384 - 1), 0x00);
  EXPECT_EQ(encode_e2m1_stochastic(0.125F, 65536 - 16384), 0x01);
}

TEST(Nvfp4Random, EveryElementHasBitsOfItsOwn) {
  std::set<uint64_t> places;
  for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{1} << 32}) {
    for (int64_t col = 0; col < 40; ++col) {
      for (const bool is_columnwise : {false, true}) {
        const auto counter = numerics::nvfp4_random_counter(row, col, is_columnwise);
        uint64_t place = 0;
        for (const uint32_t word : counter.word) {
          place = place * 41 + word;
        }
        places.insert(place * 8 + col % 8);
      }
    }
  }
  EXPECT_EQ(places.size(), 3U * 40U * 2U);
  const numerics::PhiloxWords<uint32_t> words = {{0x00010000, 0x00030002, 0x00050004, 0x00070006}};
  for (uint16_t col = 0; col < 8; ++col) {
    EXPECT_EQ(numerics::nvfp4_random_bits(words, 16 + col), col);
  }
}

TEST(Nvfp4Error, IsSummedByHalves) {
  // One large number and small ones that only count where they meet each other first.
  float v[16] = {0x1p24F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  v[1] = 1.0F;
  v[9] = 1.0F;
  EXPECT_EQ(numerics::sum_by_halves(v), 0x1p24F + 2.0F);
  float w[16] = {0x1p24F, 0, 0, 0, 1.0F, 0, 0, 0, 1.0F, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(numerics::sum_by_halves(w), 0x1p24F);  // each meets the large one alone
}

TEST(Nvfp4Error, OfAnElement) {
  const uint8_t one_and_a_half = 0x03;
  const uint8_t scale_of_20 = numerics::encode<E4M3>(20.0F);
  EXPECT_EQ(numerics::nvfp4_element_error(7.0F, one_and_a_half, scale_of_20, 4.0F), 2.0F);
  EXPECT_EQ(numerics::nvfp4_element_error(8.0F, one_and_a_half, scale_of_20, 4.0F), 2.0F);
  EXPECT_TRUE(std::isnan(numerics::nvfp4_element_error(kNaN, 7, scale_of_20, 4.0F)));
}

}  // namespace
