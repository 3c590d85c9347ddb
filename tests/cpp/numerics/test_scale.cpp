// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scale rules against FP64. The quotient of two FP32 numbers rounded through FP64 is the correctly
// rounded FP32 quotient: 53 >= 2 * 24 + 2 bits (Figueroa 1995).
#include "numerics/scale.h"

#include <gtest/gtest.h>

#include <limits>

#include "helpers/formats.h"

namespace {

namespace numerics = transformer_engine::numerics;
namespace testing_te = transformer_engine::testing;
using numerics::CurrentScaling;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kFloatMax = std::numeric_limits<float>::max();

// FP32 quotient, the largest finite number where it overflows.
float quotient(double numerator, double denominator) {
  const double exact = numerator / denominator;
  return exact > kFloatMax ? kFloatMax : static_cast<float>(exact);
}

TEST(CurrentScaling, IsTheSaturatingQuotientForEveryUsableAmax) {
  for (const float fp8_max : {448.0F, 57344.0F, 6.0F}) {
    for (const float amax : testing_te::range_cases()) {
      if (amax > 0.0F && std::isfinite(amax)) {
        const CurrentScaling rule{.fp8_max = fp8_max, .epsilon = 0.0F, .power_of_two = false};
        ASSERT_EQ(numerics::current_scaling_scale(amax, rule), quotient(fp8_max, amax)) << amax;
      }
    }
  }
}

TEST(CurrentScaling, PowerOfTwoRoundsTowardZero) {
  for (const float amax : testing_te::range_cases()) {
    if (amax > 0.0F && std::isfinite(amax)) {
      const CurrentScaling rule{.fp8_max = 448.0F, .epsilon = 0.0F, .power_of_two = true};
      const double exact = quotient(448.0, amax);
      const double expected = std::ldexp(1.0, std::ilogb(exact));
      ASSERT_EQ(static_cast<double>(numerics::current_scaling_scale(amax, rule)), expected) << amax;
    }
  }
}

TEST(CurrentScaling, EpsilonRaisesAmax) {
  const CurrentScaling rule{.fp8_max = 448.0F, .epsilon = 0.5F, .power_of_two = false};
  EXPECT_EQ(numerics::current_scaling_scale(0.0F, rule), 896.0F);
  EXPECT_EQ(numerics::current_scaling_scale(0.25F, rule), 896.0F);
  EXPECT_EQ(numerics::current_scaling_scale(1.0F, rule), 448.0F);
}

TEST(CurrentScaling, UnusableAmaxGivesOne) {
  for (const bool power_of_two : {false, true}) {
    for (const float epsilon : {0.0F, 1e-6F}) {
      const CurrentScaling rule{
          .fp8_max = 448.0F, .epsilon = epsilon, .power_of_two = power_of_two};
      EXPECT_EQ(numerics::current_scaling_scale(HUGE_VALF, rule), 1.0F);
      EXPECT_EQ(numerics::current_scaling_scale(kNaN, rule), 1.0F);
    }
  }
  const CurrentScaling rule{.fp8_max = 448.0F, .epsilon = 0.0F, .power_of_two = false};
  EXPECT_EQ(numerics::current_scaling_scale(0.0F, rule), 1.0F);
}

TEST(CurrentScaling, OverflowGivesTheLargestFiniteNumber) {
  const CurrentScaling rule{.fp8_max = 448.0F, .epsilon = 0.0F, .power_of_two = false};
  EXPECT_EQ(numerics::current_scaling_scale(0x1p-149F, rule), kFloatMax);
  const CurrentScaling power{.fp8_max = 448.0F, .epsilon = 0.0F, .power_of_two = true};
  EXPECT_EQ(numerics::current_scaling_scale(0x1p-149F, power), 0x1p127F);
}

TEST(CurrentScaling, OverflowGivesTheLargestNumberAsked) {
  const CurrentScaling rule{
      .fp8_max = 448.0F, .epsilon = 0.0F, .power_of_two = false, .largest = 65504.0F};
  EXPECT_EQ(numerics::current_scaling_scale(0x1p-149F, rule), 65504.0F);
  EXPECT_EQ(numerics::current_scaling_scale(0x1p-100F, rule), 448.0F * 0x1p100F);
}

TEST(Nvfp4TensorScaleInv, IsTheFp32Quotient) {
  for (const float e4m3_max : {448.0F, 256.0F}) {
    for (const float amax : testing_te::range_cases()) {
      if (amax >= 0.0F) {
        const double exact = static_cast<double>(amax) / (6.0 * static_cast<double>(e4m3_max));
        ASSERT_EQ(numerics::nvfp4_tensor_scale_inv(amax, e4m3_max), static_cast<float>(exact));
      }
    }
  }
}

TEST(DelayedScaling, KeepsTheOldScaleForAnUnusableAmax) {
  for (const float amax : {0.0F, -0.0F, HUGE_VALF, kNaN}) {
    EXPECT_EQ(numerics::delayed_scaling_scale(amax, 448.0F, 3.5F), 3.5F) << amax;
  }
  EXPECT_EQ(numerics::delayed_scaling_scale(0x1p-149F, 448.0F, 3.5F), kFloatMax);
  EXPECT_EQ(numerics::delayed_scaling_scale(3.0F, 448.0F, 3.5F), quotient(448.0, 3.0));
}

TEST(DelayedScaling, MarginHalvesTheNumerator) {
  EXPECT_EQ(numerics::delayed_scaling_numerator(448.0F, 0.0F), 448.0F);
  EXPECT_EQ(numerics::delayed_scaling_numerator(448.0F, 3.0F), 56.0F);
  EXPECT_EQ(numerics::delayed_scaling_numerator(57344.0F, -1.0F), 114688.0F);
}

TEST(MaxSkipNan, ANumberWinsAgainstNaN) {
  EXPECT_EQ(numerics::max_skip_nan(kNaN, 1.0F), 1.0F);
  EXPECT_EQ(numerics::max_skip_nan(1.0F, kNaN), 1.0F);
  EXPECT_EQ(numerics::max_skip_nan(1.0F, 2.0F), 2.0F);
  EXPECT_EQ(numerics::max_skip_nan(2.0F, 1.0F), 2.0F);
  EXPECT_TRUE(std::isnan(numerics::max_skip_nan(kNaN, kNaN)));
}

}  // namespace
