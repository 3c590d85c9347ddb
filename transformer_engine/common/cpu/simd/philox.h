// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What numerics/philox.h needs of a vector of words: Philox for kWidth counters at once.
#pragma once

#include "cpu/simd/vec.h"
#include "numerics/philox.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// A word of two counters per lane: independent chains of multiplications hide each other's latency
// (stochastic rounding to NVFP4, AVX-512, rowwise copy: 0.30 ns an element with one counter at a
// time, 0.26 with two).
//
// With 64-bit products the even and the odd lanes stand apart in 64-bit lanes, whose upper halves
// mean nothing: multiplication reads lower halves only.
#if TE_ISA_LEVEL >= 2
TE_INLINE Vi multiply_lower(Vi a, Vi b) { return {_mm512_mul_epu32(a.v, b.v)}; }
TE_INLINE Vi upper_to_lower(Vi a) { return {_mm512_srli_epi64(a.v, 32)}; }
TE_INLINE Vi join_lanes(Vi even, Vi odd) {
  return {_mm512_mask_blend_epi32(0xAAAA, even.v, _mm512_slli_epi64(odd.v, 32))};
}
#elif TE_ISA_LEVEL == 1
TE_INLINE Vi multiply_lower(Vi a, Vi b) { return {_mm256_mul_epu32(a.v, b.v)}; }
TE_INLINE Vi upper_to_lower(Vi a) { return {_mm256_srli_epi64(a.v, 32)}; }
TE_INLINE Vi join_lanes(Vi even, Vi odd) {
  return {_mm256_blend_epi32(even.v, _mm256_slli_epi64(odd.v, 32), 0xAA)};
}
#endif

#if TE_ISA_LEVEL >= 1
constexpr int kRandomParts = 4;  // even, odd lanes of the first counter, then of the second
#else
constexpr int kRandomParts = 2;  // all lanes of the first, of the second
#endif
struct RandomWord {
  Vi part[kRandomParts];
};

TE_INLINE RandomWord random_word(Vi first, Vi second) {
#if TE_ISA_LEVEL >= 1
  return {{first, upper_to_lower(first), second, upper_to_lower(second)}};
#else
  return {{first, second}};
#endif
}
// The word of the first or of the second counter.
template <int kCounter>
TE_INLINE Vi lanes_of(const RandomWord& word) {
#if TE_ISA_LEVEL >= 1
  return join_lanes(word.part[2 * kCounter], word.part[2 * kCounter + 1]);
#else
  return word.part[kCounter];
#endif
}

TE_INLINE RandomWord operator^(const RandomWord& a, const RandomWord& b) {
  RandomWord result;
  TE_UNROLL
  for (int i = 0; i < kRandomParts; ++i) {
    result.part[i] = a.part[i] ^ b.part[i];
  }
  return result;
}
TE_INLINE RandomWord operator^(const RandomWord& a, uint32_t b) {
  RandomWord result;
  TE_UNROLL
  for (int i = 0; i < kRandomParts; ++i) {
    result.part[i] = a.part[i] ^ set1_int(static_cast<int32_t>(b));
  }
  return result;
}

TE_INLINE numerics::WideProduct<RandomWord> multiply_wide(const RandomWord& a, uint32_t b) {
  numerics::WideProduct<RandomWord> product;
  TE_UNROLL
  for (int i = 0; i < kRandomParts; ++i) {
#if TE_ISA_LEVEL >= 1
    product.low.part[i] = multiply_lower(a.part[i], set1_int(static_cast<int32_t>(b)));
    product.high.part[i] = upper_to_lower(product.low.part[i]);
#else
    for (int lane = 0; lane < kWidth; ++lane) {
      const auto wide = numerics::multiply_wide(static_cast<uint32_t>(a.part[i].v[lane]), b);
      product.high.part[i].v[lane] = static_cast<int32_t>(wide.high);
      product.low.part[i].v[lane] = static_cast<int32_t>(wide.low);
    }
#endif
  }
  return product;
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
