// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What numerics/philox.h needs of a vector of words.
#pragma once

#include "cpu/simd/vec.h"
#include "numerics/philox.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE Vi operator^(Vi a, uint32_t b) { return a ^ set1_int(static_cast<int32_t>(b)); }

#if TE_ISA_LEVEL >= 2
// Products of the even lanes and of the odd ones, 64 bits each.
TE_INLINE numerics::WideProduct<Vi> multiply_wide(Vi a, uint32_t b) {
  constexpr __mmask16 kOddLanes = 0xAAAA;
  const __m512i factor = _mm512_set1_epi32(static_cast<int32_t>(b));
  const __m512i even = _mm512_mul_epu32(a.v, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  return {{_mm512_mask_blend_epi32(kOddLanes, _mm512_srli_epi64(even, 32), odd)},
          {_mm512_mask_blend_epi32(kOddLanes, even, _mm512_slli_epi64(odd, 32))}};
}
#elif TE_ISA_LEVEL == 1
TE_INLINE numerics::WideProduct<Vi> multiply_wide(Vi a, uint32_t b) {
  constexpr int kOddLanes = 0xAA;
  const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(b));
  const __m256i even = _mm256_mul_epu32(a.v, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), factor);
  return {{_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, kOddLanes)},
          {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), kOddLanes)}};
}
#else
TE_INLINE numerics::WideProduct<Vi> multiply_wide(Vi a, uint32_t b) {
  numerics::WideProduct<Vi> product = {};
  for (int lane = 0; lane < kWidth; ++lane) {
    const auto wide = numerics::multiply_wide(static_cast<uint32_t>(a.v[lane]), b);
    product.high.v[lane] = static_cast<int32_t>(wide.high);
    product.low.v[lane] = static_cast<int32_t>(wide.low);
  }
  return product;
}
#endif

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
