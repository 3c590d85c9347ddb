// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// BF16 and FP16 (IEEE 754 binary16) as 16-bit patterns, to and from FP32.
// To FP32: exact. From FP32: round to nearest, ties to even; overflow becomes infinity; denormals
// are kept; infinity stays infinity; NaN stays NaN (sign and leading payload bits kept, made
// quiet), which is what the x86 F16C and AVX512-BF16 instructions do.
#pragma once

#include "numerics/bits.h"

namespace transformer_engine::numerics {

inline constexpr uint16_t kBf16Max = 0x7F7F;  // largest finite numbers
inline constexpr uint16_t kFp16Max = 0x7BFF;

TE_NUMERIC float float_from_bf16(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

TE_NUMERIC uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_of_float(value);
  if (is_nan(value)) {
    return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  }
  // Adding 0x7FFF carries into bit 16 above the middle; the odd bit moves a tie to even.
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

TE_NUMERIC float float_from_fp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  const uint32_t mantissa = bits & 0x03FFU;
  if (exponent == 0x1FU) {
    const uint32_t quiet = mantissa == 0 ? 0U : 0x00400000U;
    return float_of_bits(sign | kFloatExponentBits | quiet | (mantissa << 13));
  }
  if (exponent == 0) {  // denormal: mantissa * 2^-24, exact in FP32
    const float value = static_cast<float>(mantissa) * power_of_two(-24);
    return float_of_bits(sign | bits_of_float(value));
  }
  return float_of_bits(sign | ((exponent + 127U - 15U) << 23) | (mantissa << 13));
}

TE_NUMERIC uint16_t fp16_from_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t absolute = bits & ~kFloatSignBit;
  if (absolute > kFloatExponentBits) {
    return static_cast<uint16_t>(sign | 0x7E00U | ((absolute >> 13) & 0x03FFU));
  }
  if (absolute >= 0x477FF000U) {  // 65520 and above: the tie already goes to infinity
    return static_cast<uint16_t>(sign | 0x7C00U);
  }
  if (absolute < 0x38800000U) {  // below 2^-14: the unit is 2^-24, the unit of FP32 at 0.5
    const float shifted = float_of_bits(absolute) + 0.5F;
    return static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3F000000U));
  }
  const uint32_t rounded = absolute + 0x0FFFU + ((absolute >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - ((127U - 15U) << 23)) >> 13));
}

}  // namespace transformer_engine::numerics
