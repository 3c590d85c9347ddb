// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// BF16 times a power of two to FP8, 64 elements at a time in 8-bit lanes (AVX-512 VBMI): a quarter
// of the instructions of encode_bulk (fp8_bf16.h), the same codes.
//
// With a power of two the product is exact and only its rounding is left. A BF16 has 8 exponent and
// 7 mantissa bits. Let low be the exponent field of the inputs whose product lies in the lowest
// normal binade of the format. Above it, code = (exponent - low) * 2^M + round(2^M * 1.mantissa),
// the carry into the next binade included. At a distance d = low - exponent below it, code =
// round(2^(M - d) * 1.mantissa). Both roundings are looked up: the first by the mantissa, the
// second by d and as much of the mantissa as decides it; beyond d = M + 1 the code is 0.
//
// Requires: finite inputs whose products are at most kMax in magnitude, and low >= M + 3, so that
// BF16 denormals give 0, as their products do.
#pragma once

#include "cpu/simd/fp8_bf16.h"

#if TE_ISA_LEVEL >= 3

namespace transformer_engine::cpu::TE_ISA {
namespace {

// n / 2^shift to nearest, ties to even.
constexpr uint8_t rounded_shift(int n, int shift) {
  const int down = n >> shift;
  const int rest = n - (down << shift);
  const int half = 1 << (shift - 1);
  return static_cast<uint8_t>(down + (rest > half || (rest == half && (down & 1) != 0) ? 1 : 0));
}

// The upper three mantissa bits, and whether one of the others is set.
constexpr uint8_t deciding_bits(int mantissa) {
  return static_cast<uint8_t>(((mantissa >> 4) << 1) | ((mantissa & 15) != 0 ? 1 : 0));
}

template <typename Format>
struct RoundingTables {
  alignas(64) uint8_t normal[128];    // by mantissa
  alignas(64) uint8_t deciding[128];  // by mantissa
  alignas(64) uint8_t denormal[64];   // by (d % 4) * 16 + deciding bits, d from 1 to M + 1
};
template <typename Format>
constexpr RoundingTables<Format> rounding_tables() {
  constexpr int kDropped = 7 - Format::kMantissaWidth;
  RoundingTables<Format> tables{};
  for (int mantissa = 0; mantissa < 128; ++mantissa) {
    tables.normal[mantissa] = rounded_shift(128 + mantissa, kDropped);
    tables.deciding[mantissa] = deciding_bits(mantissa);
    for (int d = 1; d <= Format::kMantissaWidth + 1; ++d) {
      tables.denormal[(d % 4) * 16 + deciding_bits(mantissa)] =
          rounded_shift(128 + mantissa, kDropped + d);
    }
  }
  return tables;
}
template <typename Format>
constexpr RoundingTables<Format> kRounding = rounding_tables<Format>();

constexpr ByteIndex lower_bytes_index() {
  ByteIndex result{};
  for (int i = 0; i < 64; ++i) {
    result.index[i] = static_cast<uint8_t>(2 * i);
  }
  return result;
}
constexpr ByteIndex kLowerBytes = lower_bytes_index();

// `low` of a scale 2^s, whose exponent field is s + 127, is this minus that field.
template <typename Format>
constexpr int kLowestBinadeBase = 2 * numerics::kFloatExponentBias + 1 - Format::kBias;
// Scales above this are out of reach.
template <typename Format>
constexpr float kLargestExponentScale = numerics::power_of_two(
    kLowestBinadeBase<Format> - (Format::kMantissaWidth + 3) - numerics::kFloatExponentBias);

// What the codes of 64 BF16 under any scale need.
struct Bf16Parts {
  Register exponent;
  Register sign;  // in the upper bit
  Register normal;
  Register deciding;
};

template <typename Format>
TE_INLINE Bf16Parts split_bf16(const void* p) {
  const auto* in = static_cast<const uint16_t*>(p);
  const Register first = load_register(in);
  const Register second = load_register(in + 32);
  const Register upper = load_register(kUpperBytes.index);
  const Register lower = _mm512_permutex2var_epi8(first, load_register(kLowerBytes.index), second);
  const auto& tables = kRounding<Format>;
  return {.exponent = _mm512_permutex2var_epi8(_mm512_add_epi16(first, first), upper,
                                               _mm512_add_epi16(second, second)),
          .sign = _mm512_permutex2var_epi8(first, upper, second),
          .normal = _mm512_permutex2var_epi8(load_register(tables.normal), lower,
                                             load_register(tables.normal + 64)),
          .deciding = _mm512_permutex2var_epi8(load_register(tables.deciding), lower,
                                               load_register(tables.deciding + 64))};
}

// low: that of each element's scale.
template <typename Format>
TE_INLINE Register encode_parts(const Bf16Parts& parts, Register low) {
  constexpr int kWidthBits = Format::kMantissaWidth;
  const Register below = _mm512_subs_epu8(low, parts.exponent);
  const Register above = _mm512_subs_epu8(parts.exponent, low);
  const __mmask64 is_below = _mm512_test_epi8_mask(below, below);
  const __mmask64 is_in_reach = _mm512_cmple_epu8_mask(below, _mm512_set1_epi8(kWidthBits + 1));
  // (d % 4) * 16 | deciding bits; the mask drops what shifts in from the neighbour.
  const Register index = _mm512_ternarylogic_epi32(_mm512_slli_epi16(below, 4),
                                                   _mm512_set1_epi8(0x30), parts.deciding, 0xEA);
  const Register rounded = _mm512_mask_permutexvar_epi8(parts.normal, is_below, index,
                                                        load_register(kRounding<Format>.denormal));
  const Register code =
      _mm512_maskz_add_epi8(is_in_reach, rounded, _mm512_slli_epi16(above, kWidthBits));
  return _mm512_ternarylogic_epi32(code, parts.sign, _mm512_set1_epi8(static_cast<char>(0x80)),
                                   0xF8);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#endif
