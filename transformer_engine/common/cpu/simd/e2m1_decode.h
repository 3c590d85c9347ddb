// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Packed E2M1 codes as E4M3 codes, which hold every E2M1 value: so one decoder serves both.
#pragma once

#include "cpu/simd/vec.h"
#include "numerics/minifloat.h"

#if TE_ISA_LEVEL >= 1
#include <immintrin.h>
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

struct E4M3OfE2M1 {
  alignas(16) uint8_t code[16];
};
constexpr E4M3OfE2M1 e4m3_of_e2m1() {
  E4M3OfE2M1 table{};
  for (int i = 0; i < 16; ++i) {
    table.code[i] =
        numerics::encode<numerics::E4M3>(numerics::decode<numerics::E2M1>(static_cast<uint8_t>(i)));
  }
  return table;
}
constexpr E4M3OfE2M1 kE4M3OfE2M1 = e4m3_of_e2m1();

// codes[i], i < count, from packed[i / 2], the even one in the low half.
TE_INLINE void e2m1_to_e4m3(const uint8_t* packed, uint8_t* codes, int64_t count) {
  int64_t i = 0;
#if TE_ISA_LEVEL >= 1
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kE4M3OfE2M1.code));
  const __m128i low_half = _mm_set1_epi8(0x0F);
  for (; i + 32 <= count; i += 32) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + i / 2));
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(pairs, low_half));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(pairs, 4), low_half));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm_unpacklo_epi8(even, odd));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i + 16), _mm_unpackhi_epi8(even, odd));
  }
#endif
  for (; i < count; ++i) {
    codes[i] = kE4M3OfE2M1.code[numerics::unpack_e2m1(packed[i / 2], i % 2 != 0)];
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
