// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "numerics/e8m0.h"

#include <gtest/gtest.h>

#include <limits>

#include "helpers/formats.h"
#include "numerics/scale.h"

namespace {

namespace numerics = transformer_engine::numerics;
namespace testing_te = transformer_engine::testing;

TEST(E8M0, DecodesEveryCodeToItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    EXPECT_EQ(static_cast<double>(numerics::decode_e8m0(byte)), std::ldexp(1.0, code - 127));
    EXPECT_EQ(static_cast<double>(numerics::reciprocal_e8m0(byte)), std::ldexp(1.0, 127 - code));
  }
  EXPECT_TRUE(std::isnan(numerics::decode_e8m0(255)));
  EXPECT_TRUE(std::isnan(numerics::reciprocal_e8m0(255)));
}

// Smallest code whose value is at least x, 254 where there is none.
int smallest_code_not_below(double x) {
  int code = 0;
  while (code < 254 && std::ldexp(1.0, code - 127) < x) {
    ++code;
  }
  return code;
}

TEST(E8M0, EncodesToTheNextPowerOfTwoUp) {
  for (const float x : testing_te::range_cases()) {
    if (x >= 0.0F) {
      ASSERT_EQ(numerics::encode_e8m0_round_up(x), smallest_code_not_below(x)) << x;
    }
  }
  for (int exponent = -149; exponent < 128; ++exponent) {
    const float power = std::ldexp(1.0F, exponent);
    for (const float x : {power, std::nextafter(power, 0.0F), std::nextafter(power, HUGE_VALF)}) {
      ASSERT_EQ(numerics::encode_e8m0_round_up(x), smallest_code_not_below(x)) << x;
    }
  }
}

TEST(E8M0, SpecialValues) {
  EXPECT_EQ(numerics::encode_e8m0_round_up(0.0F), 0);
  EXPECT_EQ(numerics::encode_e8m0_round_up(HUGE_VALF), 254);
  EXPECT_EQ(numerics::encode_e8m0_round_up(std::numeric_limits<float>::max()), 254);
  for (const float x : testing_te::nan_cases()) {
    EXPECT_EQ(numerics::encode_e8m0_round_up(x), 255);
  }
}

TEST(E8M0, BlockScaleBringsAmaxIntoRange) {
  for (const float fp8_max : {448.0F, 57344.0F, 6.0F}) {
    const float reciprocal = static_cast<float>(1.0 / static_cast<double>(fp8_max));
    for (const float amax : testing_te::range_cases()) {
      if (amax >= 0.0F) {
        const auto v = static_cast<float>(static_cast<double>(amax) * reciprocal);
        ASSERT_EQ(numerics::e8m0_from_amax(amax, fp8_max), smallest_code_not_below(v)) << amax;
      }
    }
  }
}

}  // namespace
