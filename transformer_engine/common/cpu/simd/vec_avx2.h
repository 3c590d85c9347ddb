// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// vec.h for AVX2, FMA and F16C: 8 lanes.
#pragma once

#include <immintrin.h>

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kWidth = 8;

struct Vf {
  __m256 v;
};
struct Vi {
  __m256i v;
};
struct Mask {  // all bits of a lane set, or none
  __m256 v;
};

TE_INLINE Vf set1(float x) { return {_mm256_set1_ps(x)}; }
TE_INLINE Vi set1_int(int32_t x) { return {_mm256_set1_epi32(x)}; }
TE_INLINE Vf zero() { return {_mm256_setzero_ps()}; }
TE_INLINE Vi as_int(Vf a) { return {_mm256_castps_si256(a.v)}; }
TE_INLINE Vf as_float(Vi a) { return {_mm256_castsi256_ps(a.v)}; }

TE_INLINE Vf operator+(Vf a, Vf b) { return {_mm256_add_ps(a.v, b.v)}; }
TE_INLINE Vf operator-(Vf a, Vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
TE_INLINE Vf operator*(Vf a, Vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
TE_INLINE Vf operator/(Vf a, Vf b) { return {_mm256_div_ps(a.v, b.v)}; }
TE_INLINE Vf operator-(Vf a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0F))}; }
TE_INLINE Vf fma(Vf a, Vf b, Vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TE_INLINE Vf min(Vf a, Vf b) { return {_mm256_min_ps(a.v, b.v)}; }
TE_INLINE Vf max(Vf a, Vf b) { return {_mm256_max_ps(a.v, b.v)}; }
TE_INLINE Vf abs(Vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
TE_INLINE Vf sqrt(Vf a) { return {_mm256_sqrt_ps(a.v)}; }
// Lanes 2 i and 2 i + 1 exchanged.
TE_INLINE Vf swap_pairs(Vf a) { return {_mm256_permute_ps(a.v, 0xB1)}; }
TE_INLINE Vf copysign(Vf magnitude, Vf sign) {
  const __m256 bit = _mm256_set1_ps(-0.0F);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}

TE_INLINE Vi operator+(Vi a, Vi b) { return {_mm256_add_epi32(a.v, b.v)}; }
TE_INLINE Vi operator-(Vi a, Vi b) { return {_mm256_sub_epi32(a.v, b.v)}; }
TE_INLINE Vi min_unsigned(Vi a, Vi b) { return {_mm256_min_epu32(a.v, b.v)}; }
TE_INLINE Vi max_int(Vi a, Vi b) { return {_mm256_max_epi32(a.v, b.v)}; }
TE_INLINE Vi operator&(Vi a, Vi b) { return {_mm256_and_si256(a.v, b.v)}; }
TE_INLINE Vi operator|(Vi a, Vi b) { return {_mm256_or_si256(a.v, b.v)}; }
TE_INLINE Vi operator^(Vi a, Vi b) { return {_mm256_xor_si256(a.v, b.v)}; }
template <int kBits>
TE_INLINE Vi shift_left(Vi a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
template <int kBits>
TE_INLINE Vi shift_right_logical(Vi a) {
  return {_mm256_srli_epi32(a.v, kBits)};
}

TE_INLINE Mask less(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
TE_INLINE Mask is_nan(Vf a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
TE_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.v, b.v)}; }
TE_INLINE Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
TE_INLINE Mask operator!(Mask a) {
  return {_mm256_xor_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))};
}
TE_INLINE bool any(Mask a) { return _mm256_movemask_ps(a.v) != 0; }
TE_INLINE Vf select(Mask mask, Vf a, Vf b) { return {_mm256_blendv_ps(b.v, a.v, mask.v)}; }
TE_INLINE Mask first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane))};
}

// True where the byte is not 0.
TE_INLINE Mask nonzero_bytes(const uint8_t* p) {
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(lanes, _mm256_setzero_si256()))};
}
TE_INLINE Mask nonzero_bytes(const uint8_t* p, int64_t n) {
  uint8_t bytes[kWidth] = {};
  __builtin_memcpy(bytes, p, static_cast<uint64_t>(n));
  return nonzero_bytes(bytes);
}

// x * 2^n for whole n with |n| <= 252: two normal powers, so that only the second product rounds.
TE_INLINE Vf scale_by_power_of_two(Vf x, Vf n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
  return {
      _mm256_mul_ps(_mm256_mul_ps(x.v, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second))};
}

TE_INLINE float reduce_add(Vf a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TE_INLINE float reduce_max(Vf a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TE_INLINE Vf widen_bf16(__m128i bits) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
// Each lane is the rounded BF16, widened with zeros.
TE_INLINE __m256i round_bf16(Vf a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  // A NaN keeps sign and upper payload and is made quiet, so that it cannot become Inf.
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan(a).v));
  return _mm256_srli_epi32(chosen, 16);
}
TE_INLINE __m128i narrow_bf16(Vf a) {
  const __m256i upper = round_bf16(a);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}
TE_INLINE Vf widen_fp16(__m128i bits) { return {_mm256_cvtph_ps(bits)}; }
TE_INLINE __m128i narrow_fp16(Vf a) { return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }

TE_INLINE Vf load(const float* p) { return {_mm256_loadu_ps(p)}; }
TE_INLINE Vf load(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(first_lanes(n).v))};
}
TE_INLINE void store(float* p, Vf a) { _mm256_storeu_ps(p, a.v); }
TE_INLINE void store(float* p, Vf a, int64_t n) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(first_lanes(n).v), a.v);
}

TE_INLINE __m128i load_half_bits(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
TE_INLINE __m128i load_half_bits(const void* p, int64_t n) {
  if (n == kWidth) {  // a copy of unknown length is a call
    return load_half_bits(p);
  }
  uint16_t lanes[kWidth] = {};
  __builtin_memcpy(lanes, p, static_cast<uint64_t>(n) * sizeof(uint16_t));
  return load_half_bits(lanes);
}
TE_INLINE void store_half_bits(void* p, __m128i bits) {
  _mm_storeu_si128(static_cast<__m128i*>(p), bits);
}
TE_INLINE void store_half_bits(void* p, __m128i bits, int64_t n) {
  if (n == kWidth) {
    store_half_bits(p, bits);
    return;
  }
  uint16_t lanes[kWidth];
  store_half_bits(lanes, bits);
  __builtin_memcpy(p, lanes, static_cast<uint64_t>(n) * sizeof(uint16_t));
}

TE_INLINE Vf load(const Bf16* p) { return widen_bf16(load_half_bits(p)); }
TE_INLINE Vf load(const Bf16* p, int64_t n) { return widen_bf16(load_half_bits(p, n)); }
TE_INLINE void store(Bf16* p, Vf a) { store_half_bits(p, narrow_bf16(a)); }
TE_INLINE void store(Bf16* p, Vf a, int64_t n) { store_half_bits(p, narrow_bf16(a), n); }
// Two vectors at p. The packing works within 128 bits, so quarters 1 and 2 change places after it.
TE_INLINE void store_two(Bf16* p, Vf a, Vf b) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(a), round_bf16(b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
TE_INLINE Vf load(const Fp16* p) { return widen_fp16(load_half_bits(p)); }
TE_INLINE Vf load(const Fp16* p, int64_t n) { return widen_fp16(load_half_bits(p, n)); }
TE_INLINE void store(Fp16* p, Vf a) { store_half_bits(p, narrow_fp16(a)); }
TE_INLINE void store(Fp16* p, Vf a, int64_t n) { store_half_bits(p, narrow_fp16(a), n); }

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
