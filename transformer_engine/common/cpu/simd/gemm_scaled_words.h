// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rows of a block-scaled operand for dot products that read them once: codes become pairs of BF16
// without their scales, a register at a time, and the sum of products of a register is multiplied
// by its scale: sum += scale * dot(a, q). For few rows of A that is less work than to scale the
// elements: two more instructions per register and row of A, and nothing is stored.
//
// A register (32 elements) has one scale, or two where blocks are of 16: E2M1.
#pragma once

#include "cpu/simd/gemm_pack.h"

#if TE_ISA_LEVEL >= 3

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int64_t kScaledElements = 64;  // read at once: two registers

template <typename Code>
struct ScaledWords {
  static constexpr float kLargestScale = numerics::power_of_two(  // overflows nowhere
      SafeExponents<typename Code::Format>::kHighest - numerics::kFloatExponentBias);
  CodeRowReader<Code> reader;

  TE_INLINE void read(const uint8_t* p, Vf (&words)[2]) const {
    reader.read(reinterpret_cast<const Code*>(p), words);
  }
  TE_INLINE static void read_scales(const float* scales, Vf (&of_words)[2]) {
    of_words[0] = set1(scales[0]);
    of_words[1] = set1(scales[1]);
  }
};

struct Bf16OfE2M1 {
  alignas(64) uint16_t bits[32];
};
constexpr Bf16OfE2M1 bf16_of_e2m1() {
  Bf16OfE2M1 table{};
  for (int i = 0; i < 32; ++i) {  // twice: the permutation reads 5 bits
    table.bits[i] = numerics::bf16_from_float(kFloatOfE2M1.value[i % 16]);
  }
  return table;
}
constexpr Bf16OfE2M1 kBf16OfE2M1 = bf16_of_e2m1();

template <>
struct ScaledWords<CodeE2M1> {
  static constexpr float kLargestScale = numerics::E4M3::kMax;
  __m512i table = load_register(kBf16OfE2M1.bits);

  TE_INLINE Vf pairs(const uint8_t* p) const {
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    // The upper code of each byte moves to the upper half of its lane.
    const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
    return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(codes, table))};
  }
  TE_INLINE void read(const uint8_t* p, Vf (&words)[2]) const {
    words[0] = pairs(p);
    words[1] = pairs(p + kWidth);
  }
  TE_INLINE static void read_scales(const float* scales, Vf (&of_words)[2]) {
    const __m512 four = _mm512_broadcast_f32x4(_mm_loadu_ps(scales));
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    of_words[0] = {_mm512_permutexvar_ps(halves, four)};
    of_words[1] = {_mm512_permutexvar_ps(_mm512_add_epi32(halves, _mm512_set1_epi32(2)), four)};
  }
};

// The scales of a stored row's units, up to whole multiples of kScaledElements; up to kWidth floats
// more are written. False where an element could be beyond FP32's range.
template <typename Code>
TE_INLINE bool expand_word_scales(const BlockScales& scales, int64_t row, int64_t k, float* out) {
  expand_scales<kUnit<Code>>(scales, {row, 0, 1, k}, out);
  const int64_t count = (k + kUnit<Code> - 1) / kUnit<Code>;
  Mask is_too_large = less(zero(), zero());
  for (int64_t i = 0; i < count; i += kWidth) {
    is_too_large = is_too_large | less(set1(ScaledWords<Code>::kLargestScale), load(out + i));
  }
  return !any(is_too_large);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#endif
