// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// E4M3, E5M2 and E2M1: all codes, and every rounding decision against a search over all codes.
#include "numerics/minifloat.h"

#include <gtest/gtest.h>

#include "helpers/formats.h"

namespace {

namespace numerics = transformer_engine::numerics;
namespace testing_te = transformer_engine::testing;
using testing_te::bits_of;

template <typename Codec>
struct Described;
template <>
struct Described<numerics::E4M3> {
  static constexpr testing_te::Format format = testing_te::kE4M3;
  static constexpr uint32_t code_of_nan = 0x7F;
};
template <>
struct Described<numerics::E5M2> {
  static constexpr testing_te::Format format = testing_te::kE5M2;
  static constexpr uint32_t code_of_nan = 0x7F;
};
template <>
struct Described<numerics::E2M1> {
  static constexpr testing_te::Format format = testing_te::kE2M1;
  static constexpr uint32_t code_of_nan = 0x07;  // the format has no NaN: +6
};

template <typename Codec>
class Minifloat : public ::testing::Test {};
using Codecs = ::testing::Types<numerics::E4M3, numerics::E5M2, numerics::E2M1>;
TYPED_TEST_SUITE(Minifloat, Codecs);

TYPED_TEST(Minifloat, DecodesEveryCodeToItsDefinition) {
  const auto& format = Described<TypeParam>::format;
  for (uint32_t code = 0; code < 2 * format.sign_bit(); ++code) {
    const double expected = format.value(code);
    const float value = numerics::decode<TypeParam>(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(std::signbit(value), (code & format.sign_bit()) != 0) << code;
    } else {
      EXPECT_EQ(bits_of(value), bits_of(static_cast<float>(expected))) << code;
    }
  }
}

TYPED_TEST(Minifloat, EncodingADecodedCodeGivesTheCode) {
  const auto& format = Described<TypeParam>::format;
  for (uint32_t code = 0; code < 2 * format.sign_bit(); ++code) {
    if ((code & (format.sign_bit() - 1)) < format.infinity) {
      const float value = numerics::decode<TypeParam>(static_cast<uint8_t>(code));
      EXPECT_EQ(numerics::encode<TypeParam>(value), code) << value;
    }
  }
}

TYPED_TEST(Minifloat, EncodesToTheNearestCodeTiesToEvenSaturating) {
  const auto& format = Described<TypeParam>::format;
  const testing_te::NearestCode nearest(format);
  for (const auto& cases : {testing_te::rounding_cases(format), testing_te::range_cases()}) {
    for (const float x : cases) {
      ASSERT_EQ(numerics::encode<TypeParam>(x), nearest.saturating(x)) << x;
    }
  }
}

TYPED_TEST(Minifloat, EncodesEveryBf16ToTheNearestCode) {
  const testing_te::NearestCode nearest(Described<TypeParam>::format);
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    const float x = testing_te::float_of(upper << 16);
    if (!std::isnan(x)) {
      ASSERT_EQ(numerics::encode<TypeParam>(x), nearest.saturating(x)) << x;
    }
  }
}

TYPED_TEST(Minifloat, NaNBecomesOneCode) {
  for (const float x : testing_te::nan_cases()) {
    EXPECT_EQ(numerics::encode<TypeParam>(x), Described<TypeParam>::code_of_nan);
  }
}

TYPED_TEST(Minifloat, TheLargestValueIsTheFormats) {
  EXPECT_EQ(TypeParam::kMax, Described<TypeParam>::format.finite_values().back());
}

TEST(MinifloatE2M1, TwoCodesShareAByteEvenOneLow) {
  for (uint32_t even = 0; even < 16; ++even) {
    for (uint32_t odd = 0; odd < 16; ++odd) {
      const uint8_t packed =
          numerics::pack_e2m1(static_cast<uint8_t>(even), static_cast<uint8_t>(odd));
      EXPECT_EQ(packed, odd * 16 + even);
      EXPECT_EQ(numerics::unpack_e2m1(packed, false), even);
      EXPECT_EQ(numerics::unpack_e2m1(packed, true), odd);
    }
  }
}

TEST(MinifloatConstant, CodecsWorkAtCompileTime) {
  static_assert(numerics::encode<numerics::E4M3>(448.0F) == 0x7E);
  static_assert(numerics::encode<numerics::E5M2>(-57344.0F) == 0xFB);
  static_assert(numerics::decode<numerics::E2M1>(0x0F) == -6.0F);
}

}  // namespace
