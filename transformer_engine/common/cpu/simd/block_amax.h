// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Largest magnitudes of BF16 as 16-bit integers, a register at a time. NaN is above infinity and
// shows. Below AVX2 there are none.
#pragma once

#include "cpu/simd/fp8_bf16.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

#if TE_ISA_LEVEL >= 2

TE_INLINE Register magnitudes_of(Register bf16) {
  return _mm512_and_si512(bf16, _mm512_set1_epi16(INT16_MAX));
}
TE_INLINE Register max_magnitudes(Register a, Register b) { return _mm512_max_epu16(a, b); }

// The first n elements; the others are 0.
TE_INLINE Register load_register(const uint16_t* p, int64_t n) {
  const uint32_t mask = n >= 32 ? ~0U : n > 0 ? (1U << n) - 1U : 0U;
  return _mm512_maskz_loadu_epi16(mask, p);
}

// Where register r of lane_maxima belongs: the shuffles below visit them in this order.
constexpr int maxima_slot(int r) { return (r & 4) * 2 | (r & 8) / 2 | (r & 1) * 2 | (r & 2) / 2; }

// Lane r: the largest of the 32 magnitudes in m[maxima_slot(r)], as FP32. Each step folds two
// registers into one, halves against halves. Overwrites m.
TE_INLINE Vf lane_maxima(Register (&m)[kWidth]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    m[i] = max_magnitudes(_mm512_shuffle_i64x2(m[i], m[i + 8], 0x44),
                          _mm512_shuffle_i64x2(m[i], m[i + 8], 0xEE));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[i] = max_magnitudes(_mm512_shuffle_i64x2(m[i], m[i + 4], 0x88),
                          _mm512_shuffle_i64x2(m[i], m[i + 4], 0xDD));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    m[i] = max_magnitudes(_mm512_unpacklo_epi64(m[i], m[i + 2]),
                          _mm512_unpackhi_epi64(m[i], m[i + 2]));
  }
  const __m512 a = _mm512_castsi512_ps(m[0]);
  const __m512 b = _mm512_castsi512_ps(m[1]);
  const Register pairs = max_magnitudes(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                        _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
  // The upper halves of the words are the upper halves of FP32.
  return as_float(Vi{max_magnitudes(pairs, _mm512_slli_epi32(pairs, 16))} &
                  set1_int(static_cast<int32_t>(0xFFFF0000U)));
}

#elif TE_ISA_LEVEL == 1

TE_INLINE Register magnitudes_of(Register bf16) {
  return _mm256_and_si256(bf16, _mm256_set1_epi16(INT16_MAX));
}
TE_INLINE Register max_magnitudes(Register a, Register b) { return _mm256_max_epu16(a, b); }

TE_INLINE Register load_register(const uint16_t* p, int64_t n) {
  constexpr int64_t kLanes = sizeof(Register) / sizeof(uint16_t);
  uint16_t lanes[kLanes] = {};
  if (n > 0) {
    __builtin_memcpy(lanes, p, static_cast<uint64_t>(n < kLanes ? n : kLanes) * sizeof(uint16_t));
  }
  return load_register(lanes);
}

constexpr int maxima_slot(int r) { return (r & 4) | (r & 1) * 2 | (r & 2) / 2; }

TE_INLINE Vf lane_maxima(Register (&m)[kWidth]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[i] = max_magnitudes(_mm256_permute2x128_si256(m[i], m[i + 4], 0x20),
                          _mm256_permute2x128_si256(m[i], m[i + 4], 0x31));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    m[i] = max_magnitudes(_mm256_unpacklo_epi64(m[i], m[i + 2]),
                          _mm256_unpackhi_epi64(m[i], m[i + 2]));
  }
  const __m256 a = _mm256_castsi256_ps(m[0]);
  const __m256 b = _mm256_castsi256_ps(m[1]);
  const Register pairs = max_magnitudes(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                        _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)));
  return as_float(Vi{max_magnitudes(pairs, _mm256_slli_epi32(pairs, 16))} &
                  set1_int(static_cast<int32_t>(0xFFFF0000U)));
}

#endif

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
