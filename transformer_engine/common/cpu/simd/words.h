// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The low 16 bits of the lanes as kWidth words in memory.
#pragma once

#include "cpu/simd/rows.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

#if TE_ISA_LEVEL >= 2
TE_INLINE void store_words(void* p, Vi lanes) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(lanes.v));
}
TE_INLINE void store_words(void* p, Vi lanes, int64_t n) {
  _mm512_mask_cvtepi32_storeu_epi16(p, first_lanes(n).v, lanes.v);
}
#elif TE_ISA_LEVEL == 1
TE_INLINE __m128i low_words(Vi lanes) {
  const __m256i words = _mm256_and_si256(lanes.v, _mm256_set1_epi32(0xFFFF));
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
TE_INLINE void store_words(void* p, Vi lanes) { store_half_bits(p, low_words(lanes)); }
TE_INLINE void store_words(void* p, Vi lanes, int64_t n) {
  store_half_bits(p, low_words(lanes), n);
}
#else
TE_INLINE void store_words(void* p, Vi lanes, int64_t n = kWidth) {
  const Half4 words = __builtin_convertvector(lanes.v & 0xFFFF, Half4);
  __builtin_memcpy(p, &words, static_cast<uint64_t>(n) * sizeof(uint16_t));
}
#endif
TE_INLINE void store_words(void* p, Vi lanes, AllLanes) { store_words(p, lanes); }

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
