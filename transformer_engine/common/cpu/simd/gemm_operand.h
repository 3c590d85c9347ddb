// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// How the GEMM kernels read their operands: any operand type, exactly, as kWidth FP32 lanes, or as
// kWidth pairs of BF16 (one pair per 32-bit lane, the element with the lower k in the low half)
// where the processor multiplies BF16 (kHasBf16Dot). Also the multiply-add of both.
#pragma once

#include "cpu/simd/fp8_bf16.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

struct CodeE4M3 {
  using Format = numerics::E4M3;
  uint8_t bits;
};
struct CodeE5M2 {
  using Format = numerics::E5M2;
  uint8_t bits;
};

// FP8 to FP32. Both formats are a byte of FP16 but for the exponent's bias: E5M2 is FP16's upper
// byte, E4M3 shifted by 7 is FP16 times 2^-8. The F16C conversion is exact for FP16 denormals
// whatever the denormal mode, and E4M3's NaN is the one code that comes out as 480. Half the
// instructions of decode_load, which serves where there is no such conversion.
#if TE_ISA_LEVEL >= 1
#if TE_ISA_LEVEL >= 2
using HalfBits = __m256i;
TE_INLINE HalfBits load_code_halves(const void* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
TE_INLINE HalfBits half_of_e4m3(HalfBits codes) {
  // (code << 7) moves the sign to bit 14; adding the sign bit itself moves it on to bit 15.
  const __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi16(0x80));
  return _mm256_slli_epi16(_mm256_add_epi16(codes, sign), 7);
}
TE_INLINE HalfBits half_of_e5m2(HalfBits codes) { return _mm256_slli_epi16(codes, 8); }
#else
using HalfBits = __m128i;
TE_INLINE HalfBits load_code_halves(const void* p) {
  return _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
TE_INLINE HalfBits half_of_e4m3(HalfBits codes) {
  const __m128i sign = _mm_and_si128(codes, _mm_set1_epi16(0x80));
  return _mm_slli_epi16(_mm_add_epi16(codes, sign), 7);
}
TE_INLINE HalfBits half_of_e5m2(HalfBits codes) { return _mm_slli_epi16(codes, 8); }
#endif
TE_INLINE Vf load_with_480(const CodeE4M3* p) {
  return widen_fp16(half_of_e4m3(load_code_halves(p))) * set1(0x1p8F);
}
TE_INLINE Vf load(const CodeE4M3* p) {
  const Vf value = load_with_480(p);
  return select(less(set1(numerics::E4M3::kMax), abs(value)),
                as_float(set1_int(static_cast<int32_t>(numerics::kFloatQuietNaN))), value);
}
TE_INLINE Vf load(const CodeE5M2* p) { return widen_fp16(half_of_e5m2(load_code_halves(p))); }

// The same with every bit of numerics::decode, those of a NaN too.
TE_INLINE Vf signed_nan(Vf value) {
  const Vi sign = as_int(value) & set1_int(INT32_MIN);
  return as_float(sign | set1_int(static_cast<int32_t>(numerics::kFloatQuietNaN)));
}
TE_INLINE Vf load_bitwise(const CodeE4M3* p) {
  const Vf value = load_with_480(p);
  return select(less(set1(numerics::E4M3::kMax), abs(value)), signed_nan(value), value);
}
TE_INLINE Vf load_bitwise(const CodeE5M2* p) {
  const Vf value = load(p);
  return select(is_nan(value), signed_nan(value), value);
}
#else
TE_INLINE Vf load(const CodeE4M3* p) { return decode_load<numerics::E4M3>(&p->bits); }
TE_INLINE Vf load(const CodeE5M2* p) { return decode_load<numerics::E5M2>(&p->bits); }
TE_INLINE Vf load_bitwise(const CodeE4M3* p) { return load(p); }
TE_INLINE Vf load_bitwise(const CodeE5M2* p) { return load(p); }
#endif

// acc + a * b; fused where the hardware does so.
TE_INLINE Vf multiply_add(Vf a, Vf b, Vf acc) {
#if TE_ISA_LEVEL >= 1
  return fma(a, b, acc);
#else
  return a * b + acc;
#endif
}

TE_INLINE Vf broadcast(const float* p) { return set1(*p); }

#if TE_ISA_LEVEL >= 3
constexpr bool kHasBf16Dot = true;

// acc + a_low * b_low + a_high * b_high per lane. Rounds to nearest even, counts denormal inputs
// and results as 0.
TE_INLINE Vf dot_pairs(Vf a, Vf b, Vf acc) {
  return {
      _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}

// The tables of fp8_bf16.h in registers, and 64 codes decoded at a time: two vpermi2b, denormals,
// infinity and NaN included.
template <typename Code>
struct PairDecoder {
  __m512i low0, low1, high0, high1;

  TE_INLINE PairDecoder() {
    const auto& table = kBf16OfCode<typename Code::Format>;
    low0 = load_register(table.lower);
    low1 = load_register(table.lower + 64);
    high0 = load_register(table.upper);
    high1 = load_register(table.upper + 64);
  }
  // 64 codes to BF16. Bytes are interleaved within 128-bit lanes: `first` holds elements 0-7,
  // 16-23, 32-39, 48-55, `second` the others.
  TE_INLINE void decode(__m512i codes, Vf& first, Vf& second) const {
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    const __m512i unsigned_high = _mm512_permutex2var_epi8(high0, codes, high1);
    // high | (codes & 0x80)
    const __m512i high = _mm512_ternarylogic_epi32(unsigned_high, codes,
                                                   _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
    first = {_mm512_castsi512_ps(_mm512_unpacklo_epi8(low, high))};
    second = {_mm512_castsi512_ps(_mm512_unpackhi_epi8(low, high))};
  }
  // The same with element order kept: `first` holds elements 0-31.
  TE_INLINE void decode_ordered(__m512i codes, Vf& first, Vf& second) const {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    decode(_mm512_permutexvar_epi64(order, codes), first, second);
  }
};
#else
constexpr bool kHasBf16Dot = false;
#endif

// FP8 and BF16 are multiplied as pairs of BF16 where the processor can.
template <typename T>
constexpr bool kFitsPairs = kHasBf16Dot;
template <>
constexpr bool kFitsPairs<float> = false;
template <>
constexpr bool kFitsPairs<Fp16> = false;

// acc + a * b of one word: FP32, or a pair of BF16.
template <bool kAsPairs>
TE_INLINE Vf multiply_add_words(Vf a, Vf b, Vf sum) {
#if TE_ISA_LEVEL >= 3
  if constexpr (kAsPairs) {
    return dot_pairs(a, b, sum);
  }
#endif
  return multiply_add(a, b, sum);
}

template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls body(TypeTag<T>) with the operand type of `dtype`.
template <typename Body>
TE_INLINE auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat8E4M3:
      return body(TypeTag<CodeE4M3>{});
    case DType::kFloat8E5M2:
      return body(TypeTag<CodeE5M2>{});
    case DType::kBFloat16:
      return body(TypeTag<Bf16>{});
    case DType::kFloat16:
      return body(TypeTag<Fp16>{});
    default:
      return body(TypeTag<float>{});
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
