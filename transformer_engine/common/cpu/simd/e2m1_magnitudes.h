// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// E2M1 codes of magnitudes whose signs were collected before: the fast form of simd/e2m1.h.
//
// A magnitude y < 7 and 2^22 times its binade M (1, 2 or 4; 1 below 1 too) have a sum whose last
// bits are m = y / (M / 2) to nearest even, and whose exponent is 149 + log2(M). The code is
// m + 2 * log2(M). In 16-bit halves the sum is m and 128 * exponent, so that
// 64 * m + 128 * exponent = 64 * (code + 298): one integer multiply-add of both halves inserts a
// code. The multipliers are 16 bits wide and take three nibbles.
//
// The work is spread over the units of a processor with two for multiplication, two for addition
// and shifts, and logic and integer maxima in all four (Zen 5: 7 operations an element, 2 of them
// shifts or additions, where simd/e2m1.h has 8 and 5).
#pragma once

#include "cpu/simd/nvfp4_blocks.h"

#if TE_ISA_LEVEL >= 3

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Moves the sign of each lane of `v` into `bits` from below; 16-bit lanes for pairs of BF16.
TE_INLINE Vi push_sign(Vi bits, Vi v) { return {_mm512_shldi_epi32(bits.v, v.v, 1)}; }
TE_INLINE Vi push_signs_of_halves(Vi bits, Vi v) { return {_mm512_shldi_epi16(bits.v, v.v, 1)}; }

// Signs of the 16 elements of each lane, as insert_signs takes them: bit j is element 2 * j, bit
// 4 + j element 2 * j + 1 for j < 4, and bits 8 to 15 are the same of the elements 8 to 15.
TE_INLINE Vi collect_signs(const Blocks& v) {
  Vi bits[2] = {set1_int(0), set1_int(0)};
  TE_UNROLL
  for (int half = 0; half < 2; ++half) {
    TE_UNROLL
    for (int j = 7; j >= 0; --j) {
      bits[half] = push_sign(bits[half], as_int(v[8 * half + 2 * (j % 4) + j / 4]));
    }
  }
  return bits[0] | shift_left<8>(bits[1]);
}
// The same of 8 vectors of pairs, element 2 * i in the lower half of vector i.
TE_INLINE Vi collect_signs_of_pairs(const __m512i* pairs) {
  Vi bits[2] = {set1_int(0), set1_int(0)};
  TE_UNROLL
  for (int half = 0; half < 2; ++half) {
    TE_UNROLL
    for (int j = 3; j >= 0; --j) {
      bits[half] = push_signs_of_halves(bits[half], Vi{pairs[4 * half + j]});
    }
  }
  const Vi both = bits[0] | shift_left<8>(bits[1]);
  return both | shift_right_logical<12>(both);
}

// Above the codes of elements 8 * kHalf and following: byte j of a word gets the 8 bits of `signs`
// whose fourth is for its lower and whose last for its upper nibble.
constexpr int64_t sign_offsets(int half) {
  uint64_t offsets = 0;
  for (int byte = 0; byte < 8; ++byte) {
    const int first = byte / 4 * 32 + 8 * half + byte % 4 - 3;
    offsets |= static_cast<uint64_t>(first & 63) << (8 * byte);
  }
  return static_cast<int64_t>(offsets);
}
template <int kHalf>
TE_INLINE Vi insert_signs(Vi codes, Vi signs) {
  const __m512i offsets = _mm512_set1_epi64(sign_offsets(kHalf));
  return or_masked(codes, Vi{_mm512_multishift_epi64_epi8(offsets, signs.v)},
                   set1_int(static_cast<int32_t>(0x88888888U)));
}

// Inserts the code of a rounded magnitude as nibble `i` of 3 above the first six bits of `codes`.
template <int i>
TE_INLINE Vi insert_rounded(Vi codes, Vf rounded) {
  constexpr int kUnit = 1 << (4 * i);
  return {_mm512_dpwssd_epi32(codes.v, as_int(rounded).v, set1_int(kUnit << 16 | 64 * kUnit).v)};
}
// What `count` insertions begin with.
constexpr int codes_before(int count) {
  constexpr int kNibbles = 0x111;
  return -64 * 298 * (kNibbles & ((1 << (4 * count)) - 1));
}

// y < 7, not NaN.
TE_INLINE Vf round_magnitude(Vf y) {
  const Vi binade = max_int(as_int(y), as_int(set1(1.0F))) &
                    set1_int(static_cast<int32_t>(numerics::kFloatExponentBits));
  return fma(as_float(binade), set1(0x1p22F), y);
}

// Codes of elements 8 * kHalf and following. `elements` has magnitude(i) and signs().
template <int kHalf, typename Elements>
TE_INLINE Vi encode_magnitudes(const Elements& elements, Vf multiplier, Vi signs) {
  Vf rounded[8];
  TE_UNROLL
  for (int i = 0; i < 8; ++i) {
    rounded[i] = round_magnitude(elements.magnitude(8 * kHalf + i) * multiplier);
  }
  Vi low = insert_rounded<0>(set1_int(codes_before(3)), rounded[0]);
  Vi middle = insert_rounded<0>(set1_int(codes_before(3)), rounded[3]);
  Vi high = insert_rounded<0>(set1_int(codes_before(2)), rounded[6]);
  low = insert_rounded<1>(low, rounded[1]);
  middle = insert_rounded<1>(middle, rounded[4]);
  high = insert_rounded<1>(high, rounded[7]);
  low = insert_rounded<2>(low, rounded[2]);
  middle = insert_rounded<2>(middle, rounded[5]);
  const Vi word = shift_right_logical<6>(low) | shift_left<6>(middle) | shift_left<18>(high);
  return insert_signs<kHalf>(word, signs);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#endif
