// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// vec.h for AVX-512 F, BW, DQ, VL: 16 lanes.
#pragma once

#include <immintrin.h>

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kWidth = 16;

struct Vf {
  __m512 v;
};
struct Vi {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

TE_INLINE Vf set1(float x) { return {_mm512_set1_ps(x)}; }
TE_INLINE Vi set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
TE_INLINE Vf zero() { return {_mm512_setzero_ps()}; }
TE_INLINE Vi as_int(Vf a) { return {_mm512_castps_si512(a.v)}; }
TE_INLINE Vf as_float(Vi a) { return {_mm512_castsi512_ps(a.v)}; }

TE_INLINE Vf operator+(Vf a, Vf b) { return {_mm512_add_ps(a.v, b.v)}; }
TE_INLINE Vf operator-(Vf a, Vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
TE_INLINE Vf operator*(Vf a, Vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
TE_INLINE Vf operator/(Vf a, Vf b) { return {_mm512_div_ps(a.v, b.v)}; }
TE_INLINE Vf operator-(Vf a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0F))}; }
TE_INLINE Vf fma(Vf a, Vf b, Vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TE_INLINE Vf min(Vf a, Vf b) { return {_mm512_min_ps(a.v, b.v)}; }
TE_INLINE Vf max(Vf a, Vf b) { return {_mm512_max_ps(a.v, b.v)}; }
TE_INLINE Vf abs(Vf a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0F), a.v)}; }
TE_INLINE Vf sqrt(Vf a) { return {_mm512_sqrt_ps(a.v)}; }
// Lanes 2 i and 2 i + 1 exchanged.
TE_INLINE Vf swap_pairs(Vf a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
TE_INLINE Vf copysign(Vf magnitude, Vf sign) {
  // Bit select: the sign bit from `sign`, the others from `magnitude`.
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude.v),
                                                        _mm512_castps_si512(sign.v),
                                                        _mm512_set1_epi32(INT32_MIN), 0xD8))};
}

TE_INLINE Vi operator+(Vi a, Vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
TE_INLINE Vi operator-(Vi a, Vi b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TE_INLINE Vi min_unsigned(Vi a, Vi b) { return {_mm512_min_epu32(a.v, b.v)}; }
TE_INLINE Vi max_int(Vi a, Vi b) { return {_mm512_max_epi32(a.v, b.v)}; }
TE_INLINE Vi operator&(Vi a, Vi b) { return {_mm512_and_si512(a.v, b.v)}; }
TE_INLINE Vi operator|(Vi a, Vi b) { return {_mm512_or_si512(a.v, b.v)}; }
TE_INLINE Vi operator^(Vi a, Vi b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
TE_INLINE Vi shift_left(Vi a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
TE_INLINE Vi shift_right_logical(Vi a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}

TE_INLINE Mask less(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TE_INLINE Mask is_nan(Vf a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
TE_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
TE_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
TE_INLINE Mask operator!(Mask a) { return {static_cast<__mmask16>(~a.v)}; }
TE_INLINE bool any(Mask a) { return a.v != 0; }
TE_INLINE Vf select(Mask mask, Vf a, Vf b) { return {_mm512_mask_blend_ps(mask.v, b.v, a.v)}; }
TE_INLINE Mask first_lanes(int64_t n) { return {static_cast<__mmask16>((1U << n) - 1U)}; }

// True where the byte is not 0.
TE_INLINE Mask nonzero_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm_test_epi8_mask(bytes, bytes)};
}
TE_INLINE Mask nonzero_bytes(const uint8_t* p, int64_t n) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(n).v, p);
  return {_mm_test_epi8_mask(bytes, bytes)};
}

// x * 2^n for whole n.
TE_INLINE Vf scale_by_power_of_two(Vf x, Vf n) { return {_mm512_scalef_ps(x.v, n.v)}; }

TE_INLINE float reduce_add(Vf a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TE_INLINE float reduce_max(Vf a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TE_INLINE Vf widen_bf16(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
// The upper half of each lane is the rounded BF16.
TE_INLINE __m512i round_bf16(Vf a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  // Half a unit less one, and that one where the upper half is odd: ties go to even.
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i rounded = _mm512_add_epi32(
      bits, _mm512_mask_blend_epi32(is_odd, _mm512_set1_epi32(0x7FFF), _mm512_set1_epi32(0x8000)));
  // A NaN keeps sign and upper payload and is made quiet, so that it cannot become Inf.
  return _mm512_mask_or_epi32(rounded, is_nan(a).v, bits, _mm512_set1_epi32(0x00400000));
}
TE_INLINE __m256i narrow_bf16(Vf a) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(a), 16));
}
TE_INLINE Vf widen_fp16(__m256i bits) { return {_mm512_cvtph_ps(bits)}; }
TE_INLINE __m256i narrow_fp16(Vf a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

TE_INLINE Vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
TE_INLINE Vf load(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n).v, p)};
}
TE_INLINE void store(float* p, Vf a) { _mm512_storeu_ps(p, a.v); }
TE_INLINE void store(float* p, Vf a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n).v, a.v); }

TE_INLINE __m256i load_half_bits(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TE_INLINE __m256i load_half_bits(const void* p, int64_t n) {
  return _mm256_maskz_loadu_epi16(first_lanes(n).v, p);
}
TE_INLINE void store_half_bits(void* p, __m256i bits) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
}
TE_INLINE void store_half_bits(void* p, __m256i bits, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n).v, bits);
}

TE_INLINE Vf load(const Bf16* p) { return widen_bf16(load_half_bits(p)); }
TE_INLINE Vf load(const Bf16* p, int64_t n) { return widen_bf16(load_half_bits(p, n)); }
TE_INLINE void store(Bf16* p, Vf a) { store_half_bits(p, narrow_bf16(a)); }
TE_INLINE void store(Bf16* p, Vf a, int64_t n) { store_half_bits(p, narrow_bf16(a), n); }
// Two vectors at p: one permutation takes the upper halves of both.
TE_INLINE void store_two(Bf16* p, Vf a, Vf b) {
  const __m512i odd_words =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(round_bf16(a), odd_words, round_bf16(b)));
}
TE_INLINE Vf load(const Fp16* p) { return widen_fp16(load_half_bits(p)); }
TE_INLINE Vf load(const Fp16* p, int64_t n) { return widen_fp16(load_half_bits(p, n)); }
TE_INLINE void store(Fp16* p, Vf a) { store_half_bits(p, narrow_fp16(a)); }
TE_INLINE void store(Fp16* p, Vf a, int64_t n) { store_half_bits(p, narrow_fp16(a), n); }

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
