// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FP32 numbers as bit patterns (IEEE 754 binary32).
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace transformer_engine::numerics {

inline constexpr uint32_t kFloatSignBit = 0x80000000U;
inline constexpr uint32_t kFloatExponentBits = 0x7F800000U;  // also the pattern of infinity
inline constexpr uint32_t kFloatMantissaBits = 0x007FFFFFU;
inline constexpr uint32_t kFloatQuietNaN = 0x7FC00000U;
inline constexpr int kFloatMantissaWidth = 23;
inline constexpr int kFloatExponentBias = 127;
inline constexpr float kFloatMax = 3.402823466385288598e38F;

TE_NUMERIC uint32_t bits_of_float(float value) { return __builtin_bit_cast(uint32_t, value); }
TE_NUMERIC float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Tests on the bit pattern hold under any floating-point compiler option.
TE_NUMERIC bool is_nan(float value) {
  return (bits_of_float(value) & ~kFloatSignBit) > kFloatExponentBits;
}
TE_NUMERIC bool is_finite(float value) {
  return (bits_of_float(value) & kFloatExponentBits) != kFloatExponentBits;
}
TE_NUMERIC float magnitude(float value) {
  return float_of_bits(bits_of_float(value) & ~kFloatSignBit);
}

// 2^exponent for a normal result: -126 <= exponent <= 127.
TE_NUMERIC float power_of_two(int exponent) {
  return float_of_bits(static_cast<uint32_t>(exponent + kFloatExponentBias) << kFloatMantissaWidth);
}

}  // namespace transformer_engine::numerics
