// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Transpose of kWidth x kWidth 32-bit words held in kWidth registers: afterwards word j of v[i] is
// what word i of v[j] was.
#pragma once

#include "cpu/simd/vec.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

#if TE_ISA_LEVEL >= 1
// Within each group of four registers and each 128-bit lane: a 4x4 transpose of words.
template <typename Register, typename Low, typename High, typename Low2, typename High2>
TE_INLINE void transpose_lanes(Register* v, Low low, High high, Low2 low2, High2 high2) {
#pragma GCC unroll 4
  for (int i = 0; i < kWidth; i += 4) {
    const Register ab_low = low(v[i], v[i + 1]);
    const Register ab_high = high(v[i], v[i + 1]);
    const Register cd_low = low(v[i + 2], v[i + 3]);
    const Register cd_high = high(v[i + 2], v[i + 3]);
    v[i] = low2(ab_low, cd_low);
    v[i + 1] = high2(ab_low, cd_low);
    v[i + 2] = low2(ab_high, cd_high);
    v[i + 3] = high2(ab_high, cd_high);
  }
}
#endif

#if TE_ISA_LEVEL >= 2
TE_INLINE void transpose(Vf (&x)[kWidth]) {
  __m512 v[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    v[i] = x[i].v;
  }
  const auto pd = [](__m512 a) { return _mm512_castps_pd(a); };
  const auto ps = [](__m512d a) { return _mm512_castpd_ps(a); };
  transpose_lanes(
      v, [](__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); },
      [](__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); },
      [&](__m512 a, __m512 b) { return ps(_mm512_unpacklo_pd(pd(a), pd(b))); },
      [&](__m512 a, __m512 b) { return ps(_mm512_unpackhi_pd(pd(a), pd(b))); });
  // Register 4g + j now holds, in lane l, words (4l + j) of rows 4g ... 4g + 3: a 4x4 transpose of
  // whole lanes over g is left.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 even01 = _mm512_shuffle_f32x4(v[j], v[j + 4], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(v[j], v[j + 4], 0xDD);
    const __m512 even23 = _mm512_shuffle_f32x4(v[j + 8], v[j + 12], 0x88);
    const __m512 odd23 = _mm512_shuffle_f32x4(v[j + 8], v[j + 12], 0xDD);
    x[j].v = _mm512_shuffle_f32x4(even01, even23, 0x88);
    x[j + 4].v = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    x[j + 8].v = _mm512_shuffle_f32x4(even01, even23, 0xDD);
    x[j + 12].v = _mm512_shuffle_f32x4(odd01, odd23, 0xDD);
  }
}
#elif TE_ISA_LEVEL == 1
TE_INLINE void transpose(Vf (&x)[kWidth]) {
  __m256 v[kWidth];
#pragma GCC unroll 8
  for (int i = 0; i < kWidth; ++i) {
    v[i] = x[i].v;
  }
  const auto pd = [](__m256 a) { return _mm256_castps_pd(a); };
  const auto ps = [](__m256d a) { return _mm256_castpd_ps(a); };
  transpose_lanes(
      v, [](__m256 a, __m256 b) { return _mm256_unpacklo_ps(a, b); },
      [](__m256 a, __m256 b) { return _mm256_unpackhi_ps(a, b); },
      [&](__m256 a, __m256 b) { return ps(_mm256_unpacklo_pd(pd(a), pd(b))); },
      [&](__m256 a, __m256 b) { return ps(_mm256_unpackhi_pd(pd(a), pd(b))); });
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    x[j].v = _mm256_permute2f128_ps(v[j], v[j + 4], 0x20);
    x[j + 4].v = _mm256_permute2f128_ps(v[j], v[j + 4], 0x31);
  }
}
#else
TE_INLINE void transpose(Vf (&x)[kWidth]) {
  float words[kWidth][kWidth];
  for (int i = 0; i < kWidth; ++i) {
    store(words[i], x[i]);
  }
  for (int i = 0; i < kWidth; ++i) {
    float row[kWidth];
    for (int j = 0; j < kWidth; ++j) {
      row[j] = words[j][i];
    }
    x[i] = load(row);
  }
}
#endif

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
