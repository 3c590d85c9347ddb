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
  static constexpr int64_t kElementsPerScale = 32;
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
  static constexpr int64_t kElementsPerScale = 16;
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

template <typename Code>
TE_INLINE bool has_scale_per_word(const BlockScales& scales) {
  return scales.block_cols % ScaledWords<Code>::kElementsPerScale == 0;
}

// kWidth scales in FP32, those beyond n something finite.
TE_INLINE Vf load_scales(const BlockScales& scales, int64_t index, int64_t n) {
  const auto* const codes = static_cast<const uint8_t*>(scales.data) + index;
  if (scales.dtype == DType::kFloat32) {
    return load(static_cast<const float*>(scales.data) + index, n);
  }
  if (scales.dtype == DType::kFloat8E4M3) {
    return decode_load<numerics::E4M3>(codes, n);
  }
  const Vi wide = load_bytes(codes, n);
  const Vf power = as_float(shift_left<numerics::kFloatMantissaWidth>(wide));
  const Vf denormal = set1(numerics::decode_e8m0(0));
  const Vf nan = as_float(set1_int(static_cast<int32_t>(numerics::kFloatQuietNaN)));
  const Vf infinity = as_float(set1_int(static_cast<int32_t>(numerics::kFloatExponentBits)));
  return select(less(zero(), power), select(less(power, infinity), power, nan), denormal);
}

// The scales of a stored row's words, up to whole multiples of kScaledElements; up to kWidth floats
// more are written. False where an element could be beyond FP32's range.
template <typename Code>
TE_INLINE bool expand_word_scales(const BlockScales& scales, int64_t row, int64_t k, float* out) {
  constexpr int64_t kElements = ScaledWords<Code>::kElementsPerScale;
  const Vf largest = set1(ScaledWords<Code>::kLargestScale);
  const int64_t first = row / scales.block_rows * scales.row_stride;
  const int64_t count = (k + kElements - 1) / kElements;
  Mask is_too_large = less(largest, zero());
  if (scales.block_cols == kElements && scales.col_stride == 1) {
    for (int64_t i = 0; i < count; i += kWidth) {
      const int64_t left = count - i;
      const Vf some = load_scales(scales, first + i, left < kWidth ? left : kWidth);
      is_too_large = is_too_large | less(largest, some);
      store(out + i, some);
    }
    return !any(is_too_large);
  }
  const int64_t repeat = scales.block_cols / kElements;
  int64_t index = first;
  for (int64_t i = 0; i < count; index += scales.col_stride) {
    const Vf one = {_mm512_broadcastss_ps(_mm512_castps512_ps128(load_scales(scales, index, 1).v))};
    is_too_large = is_too_large | less(largest, one);
    const int64_t end = i + repeat;
    for (; i < end && i < count; i += kWidth) {
      store(out + i, one);
    }
    i = end;
  }
  return !any(is_too_large);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#endif
