// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// BF16 and FP16: all codes, and every rounding decision against a search over all codes.
#include "numerics/half.h"

#include <gtest/gtest.h>

#include "helpers/formats.h"

namespace {

namespace numerics = transformer_engine::numerics;
namespace testing_te = transformer_engine::testing;
using testing_te::bits_of;
using testing_te::float_of;

struct Conversion {
  testing_te::Format format;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};

class Half : public ::testing::TestWithParam<Conversion> {};

INSTANTIATE_TEST_SUITE_P(
    Formats, Half,
    ::testing::Values(Conversion{testing_te::kFP16,
                                 [](uint16_t code) { return numerics::float_from_fp16(code); },
                                 [](float x) { return numerics::fp16_from_float(x); }},
                      Conversion{testing_te::kBF16,
                                 [](uint16_t code) { return numerics::float_from_bf16(code); },
                                 [](float x) { return numerics::bf16_from_float(x); }}),
    [](const auto& info) { return info.param.format.name; });

TEST_P(Half, WidensEveryCodeExactly) {
  const auto& [format, widen, narrow] = GetParam();
  for (uint32_t code = 0; code < 65536; ++code) {
    const double expected = format.value(code);
    const float value = widen(static_cast<uint16_t>(code));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else {
      ASSERT_EQ(bits_of(value), bits_of(static_cast<float>(expected))) << code;
      ASSERT_EQ(narrow(value), code);
    }
  }
}

TEST_P(Half, NarrowsToTheNearestCodeTiesToEven) {
  const auto& [format, widen, narrow] = GetParam();
  const testing_te::NearestCode nearest(format);
  for (const auto& cases : {testing_te::rounding_cases(format), testing_te::range_cases()}) {
    for (const float x : cases) {
      ASSERT_EQ(narrow(x), nearest.overflowing(x)) << x;
    }
  }
}

TEST_P(Half, NaNStaysNaNOfTheSameSign) {
  const auto& [format, widen, narrow] = GetParam();
  for (const float x : testing_te::nan_cases()) {
    const uint16_t code = narrow(x);
    EXPECT_TRUE(std::isnan(format.value(code))) << bits_of(x);
    EXPECT_EQ((code & 0x8000) != 0, std::signbit(x)) << bits_of(x);
  }
}

}  // namespace
