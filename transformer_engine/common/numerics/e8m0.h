// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// E8M0 (OCP microscaling formats): a power of two, value = 2^(code - 127); 255 is NaN.
#pragma once

#include "numerics/bits.h"

namespace transformer_engine::numerics {

inline constexpr uint8_t kE8M0NaN = 255;
inline constexpr uint8_t kE8M0Max = 254;

// Exact; code 0 is the FP32 denormal 2^-127.
TE_NUMERIC float decode_e8m0(uint8_t code) {
  if (code == kE8M0NaN) {
    return float_of_bits(kFloatQuietNaN);
  }
  return float_of_bits(code == 0 ? 0x00400000U : static_cast<uint32_t>(code) << 23);
}

// 1 / decode_e8m0(code) = 2^(127 - code), exact; what elements are multiplied by to quantize.
TE_NUMERIC float reciprocal_e8m0(uint8_t code) {
  return code == kE8M0NaN ? float_of_bits(kFloatQuietNaN)
                          : decode_e8m0(static_cast<uint8_t>(kE8M0Max - code));
}

// Code of the smallest power of two >= value, value >= 0: infinity and overflow give 254, NaN 255,
// 0 and everything up to 2^-127 give 0.
TE_NUMERIC uint8_t encode_e8m0_round_up(float value) {
  const uint32_t bits = bits_of_float(value) & ~kFloatSignBit;
  if (bits > kFloatExponentBits) {
    return kE8M0NaN;
  }
  const uint32_t exponent = bits >> kFloatMantissaWidth;
  const uint32_t mantissa = bits & kFloatMantissaBits;
  // A denormal's exponent field stands for 2^-127, whose mantissa is 0x400000.
  const uint32_t exact_mantissa = exponent == 0 ? 0x00400000U : 0U;
  const uint32_t code = exponent + (mantissa > exact_mantissa ? 1U : 0U);
  return static_cast<uint8_t>(code < kE8M0Max ? code : kE8M0Max);
}

}  // namespace transformer_engine::numerics
