// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Formats of 8 bits or fewer: sign, exponent, mantissa; the exponent field 0 holds denormals.
//   E4M3 (OCP 8-bit floating point): max 448, no infinity, NaN 0x7F
//   E5M2 (OCP 8-bit floating point): max 57344, infinity 0x7C, NaN 0x7D to 0x7F
//   E2M1 (OCP microscaling formats): max 6, neither infinity nor NaN
// Encoding rounds to nearest even and saturates: infinity and values beyond the largest become
// +-kMax, never infinity. NaN becomes the one code kNaNCode without its sign, as NVIDIA's
// conversion instructions do; E2M1 has none, there it becomes +6. Zero keeps its sign.
#pragma once

#include "numerics/bits.h"

namespace transformer_engine::numerics {

struct E4M3 {
  static constexpr int kMantissaWidth = 3;
  static constexpr int kBias = 7;
  static constexpr float kMax = 448.0F;
  static constexpr uint8_t kSignBit = 0x80;
  static constexpr uint8_t kNaNCode = 0x7F;
  static constexpr uint8_t kFirstSpecial = 0x7F;  // smallest magnitude that is not finite
};

struct E5M2 {
  static constexpr int kMantissaWidth = 2;
  static constexpr int kBias = 15;
  static constexpr float kMax = 57344.0F;
  static constexpr uint8_t kSignBit = 0x80;
  static constexpr uint8_t kNaNCode = 0x7F;
  static constexpr uint8_t kFirstSpecial = 0x7C;
};

struct E2M1 {
  static constexpr int kMantissaWidth = 1;
  static constexpr int kBias = 1;
  static constexpr float kMax = 6.0F;
  static constexpr uint8_t kSignBit = 0x08;
  static constexpr uint8_t kNaNCode = 0x07;
  static constexpr uint8_t kFirstSpecial = 0x08;  // none
};

// Code of min(value, kMax), value >= 0 and not NaN, without the sign bit.
// Let e be the power of two of max(value, smallest normal). value + e * 2^(23 - M) has a last bit
// worth e / 2^M, the step of the format at value, so that one FP32 addition rounds it to nearest
// even there, denormals and the carry into the next power of two included. The low mantissa bits
// of the sum then count the steps in value.
template <typename Format>
TE_NUMERIC uint8_t encode_magnitude(float value) {
  constexpr int kWidth = Format::kMantissaWidth;
  constexpr float kMinNormal = power_of_two(1 - Format::kBias);
  const float clamped = value < Format::kMax ? value : Format::kMax;
  const float binade = clamped > kMinNormal ? clamped : kMinNormal;
  const uint32_t exponent_bits = bits_of_float(binade) & kFloatExponentBits;
  const float sum =
      clamped + float_of_bits(exponent_bits) * power_of_two(kFloatMantissaWidth - kWidth);
  const uint32_t steps = bits_of_float(sum) & kFloatMantissaBits;
  // Exponent field of a normal value minus one: the steps count the hidden bit, too.
  const uint32_t field = (exponent_bits >> kFloatMantissaWidth) +
                         static_cast<uint32_t>(Format::kBias - 1 - kFloatExponentBias);
  return static_cast<uint8_t>((field << kWidth) + steps);
}

template <typename Format>
TE_NUMERIC uint8_t encode(float value) {
  if (is_nan(value)) {
    return Format::kNaNCode;
  }
  const uint8_t sign = (bits_of_float(value) & kFloatSignBit) != 0 ? Format::kSignBit : uint8_t{0};
  return static_cast<uint8_t>(sign | encode_magnitude<Format>(magnitude(value)));
}

// Exact. NaN codes give a quiet NaN with the code's sign.
template <typename Format>
TE_NUMERIC float decode(uint8_t code) {
  constexpr int kWidth = Format::kMantissaWidth;
  const uint32_t sign = (code & Format::kSignBit) != 0 ? kFloatSignBit : 0U;
  const uint32_t absolute = code & (Format::kSignBit - 1U);
  if (absolute >= Format::kFirstSpecial) {
    const bool is_infinity =
        Format::kFirstSpecial != Format::kNaNCode && absolute == Format::kFirstSpecial;
    return float_of_bits(sign | (is_infinity ? kFloatExponentBits : kFloatQuietNaN));
  }
  if ((absolute >> kWidth) == 0) {  // denormal: a count of the smallest step
    const float value = static_cast<float>(absolute) * power_of_two(1 - Format::kBias - kWidth);
    return float_of_bits(sign | bits_of_float(value));
  }
  const uint32_t shifted = absolute << (kFloatMantissaWidth - kWidth);
  const uint32_t rebias = static_cast<uint32_t>(kFloatExponentBias - Format::kBias)
                          << kFloatMantissaWidth;
  return float_of_bits(sign | (shifted + rebias));
}

// Two E2M1 codes share a byte, the element with the even index in the low half.
TE_NUMERIC uint8_t pack_e2m1(uint8_t even, uint8_t odd) {
  return static_cast<uint8_t>((even & 0x0FU) | (static_cast<unsigned>(odd) << 4));
}
TE_NUMERIC uint8_t unpack_e2m1(uint8_t packed, bool is_odd) {
  return static_cast<uint8_t>(is_odd ? packed >> 4 : packed & 0x0F);
}

}  // namespace transformer_engine::numerics
