// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// E2M1 codes of float vectors: the vector form of numerics/minifloat.h, bit for bit.
//
// The magnitudes 0, 1/2, 1, 3/2 | 2, 3 | 4, 6 have the codes 0 to 7, in steps of 1/2 below 2, 1
// below 4 and 2 above. An addend per range of |y| makes FP32's last bit worth that step, so that
// one addition rounds y to nearest even and leaves the code in the last bits of the sum: 2^22,
// whose last bit is worth 1/2; 2^23 + 2, where 2 is the two codes by which 2 is ahead of 2 steps;
// and 2^24 + 4 * 2. The addend gets the sign of y, and the sum keeps it.
#pragma once

#include "cpu/simd/vec.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// max(|a|, limit) and min(|a|, limit), `limit` for a quiet NaN; for results of arithmetic, which
// are never signalling.
#if TE_ISA_LEVEL >= 2
TE_INLINE Vf max_magnitude(Vf a, Vf limit) { return {_mm512_range_ps(a.v, limit.v, 0xB)}; }
TE_INLINE Vf min_magnitude(Vf a, Vf limit) { return {_mm512_range_ps(a.v, limit.v, 0xA)}; }
#else
TE_INLINE Vf max_magnitude(Vf a, Vf limit) { return max(abs(a), limit); }
TE_INLINE Vf min_magnitude(Vf a, Vf limit) { return min(abs(a), limit); }
#endif

// What to add in each range of |y|.
struct E2m1Addends {
  float half_step, one_step, two_step;
};
constexpr E2m1Addends kNearestAddends = {0x1p22F, 0x1p23F + 2.0F, 0x1p24F + 8.0F};

// The one for |y| < 8, with the sign of y. A table lookup reads the lowest bits of the exponent
// field, which is 127 (all ones), 128 or 129.
TE_INLINE Vf e2m1_addend(Vf y, const E2m1Addends& of) {
  const Vf range = max_magnitude(y, set1(1.0F));
#if TE_ISA_LEVEL >= 2
  const __m512 table =
      _mm512_setr_ps(of.one_step, of.two_step, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, of.half_step);
  const Vf addend = {_mm512_permutexvar_ps(shift_right_logical<23>(as_int(range)).v, table)};
#elif TE_ISA_LEVEL == 1
  const __m256 table = _mm256_setr_ps(of.one_step, of.two_step, 0, 0, 0, 0, 0, of.half_step);
  const Vf addend = {_mm256_permutevar8x32_ps(table, shift_right_logical<23>(as_int(range)).v)};
#else
  const Vf addend = select(less(range, set1(2.0F)), set1(of.half_step),
                           select(less(range, set1(4.0F)), set1(of.one_step), set1(of.two_step)));
#endif
  return copysign(addend, y);
}

// y within what has a code, at most 6 in magnitude; and where y may be NaN, which becomes +6.
TE_INLINE Vf saturate_number(Vf y) { return copysign(min_magnitude(y, set1(6.0F)), y); }
TE_INLINE Vf saturate_e2m1(Vf y) { return select(is_nan(y), set1(6.0F), saturate_number(y)); }

// A rounded y as e2m1_addend gives it: the code in the last bits, and the sign.
TE_INLINE Vf round_e2m1(Vf y) { return y + e2m1_addend(y, kNearestAddends); }

template <int kBits>
TE_INLINE Vi rotate_left(Vi a) {
#if TE_ISA_LEVEL >= 2
  return {_mm512_rol_epi32(a.v, kBits)};
#else
  return shift_left<kBits>(a) | shift_right_logical<32 - kBits>(a);
#endif
}

// a | (b & mask)
TE_INLINE Vi or_masked(Vi a, Vi b, Vi mask) {
#if TE_ISA_LEVEL >= 2
  return {_mm512_ternarylogic_epi32(a.v, b.v, mask.v, 0xF8)};
#else
  return a | (b & mask);
#endif
}

// A rounded vector's code and sign, next to each other after rotating by one bit, with the sign
// below the code, become nibble i of 8. Nibbles come in order: `word` holds those before i.
#if TE_ISA_LEVEL >= 3
// From above: the word moves down by a nibble for each.
template <int i>
TE_INLINE Vi insert_rotated_code(Vi word, Vf rounded) {
  return {_mm512_shrdi_epi32(word.v, rotate_left<1>(as_int(rounded)).v, 4)};
}
#else
template <int i>
TE_INLINE Vi insert_rotated_code(Vi word, Vf rounded) {
  return or_masked(word, rotate_left<4 * i + 1>(as_int(rounded)),
                   set1_int(static_cast<int32_t>(0xFU << (4 * i))));
}
#endif

// The codes of 8 rounded vectors as words: element i of a lane in its nibble i.
TE_INLINE Vi pack_e2m1(const Vf* rounded) {
  Vi word = insert_rotated_code<0>(set1_int(0), rounded[0]);
  word = insert_rotated_code<1>(word, rounded[1]);
  word = insert_rotated_code<2>(word, rounded[2]);
  word = insert_rotated_code<3>(word, rounded[3]);
  word = insert_rotated_code<4>(word, rounded[4]);
  word = insert_rotated_code<5>(word, rounded[5]);
  word = insert_rotated_code<6>(word, rounded[6]);
  word = insert_rotated_code<7>(word, rounded[7]);
  // Back to the sign above the code.
  return or_masked(shift_right_logical<1>(word) & set1_int(0x77777777), shift_left<3>(word),
                   set1_int(static_cast<int32_t>(0x88888888U)));
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
