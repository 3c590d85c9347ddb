// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FP8 codes of float vectors and back, for any value and any scale: the vector form of
// numerics/minifloat.h, bit for bit. Format is numerics::E4M3 or numerics::E5M2.
//
//   encode_store<Format>(p, v), (p, v, n)   codes of all (the first n) lanes; round to nearest
//                                           even, saturate, NaN becomes 0x7F
//   decode_load<Format>(p), (p, n)          lanes from codes, exact; lanes beyond n are 0
#pragma once

#include "cpu/simd/vec.h"
#include "numerics/minifloat.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE Vi select_int(Mask mask, Vi a, Vi b) {
  return as_int(select(mask, as_float(a), as_float(b)));
}

// a * b + c for an exact product: no fma needed for a single rounding (the portable one is slow).
TE_INLINE Vf multiply_add_exact_product(Vf a, Vf b, Vf c) {
#if TE_ISA_LEVEL >= 1
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

template <typename Format>
struct Fp8Constants {
  static constexpr float kMinNormal = numerics::power_of_two(1 - Format::kBias);
  static constexpr float kStepsPerBinade =
      numerics::power_of_two(numerics::kFloatMantissaWidth - Format::kMantissaWidth);
  // What `sum + (sum >> kShift)` below holds beside the code in its low byte.
  static constexpr int kShift = numerics::kFloatMantissaWidth - Format::kMantissaWidth;
  static constexpr int kSurplus = (kShift + numerics::kFloatExponentBias - Format::kBias + 1)
                                  << Format::kMantissaWidth;
};

// Low byte of each lane: code of min(|x|, kMax) + kSurplus, no sign; the other bytes are junk.
// NaN gives the largest code. See encode_magnitude in numerics/minifloat.h for the formula; here
// the exponent field comes from the sum itself, which is 2^kShift times larger than x.
template <typename Format>
TE_INLINE Vi encode_magnitude_with_surplus(Vf x) {
  using Constants = Fp8Constants<Format>;
  const Vf clamped = min(abs(x), set1(Format::kMax));
  const Vi binade = as_int(max(clamped, set1(Constants::kMinNormal))) &
                    set1_int(static_cast<int32_t>(numerics::kFloatExponentBits));
  const Vi sum = as_int(
      multiply_add_exact_product(as_float(binade), set1(Constants::kStepsPerBinade), clamped));
  return sum + shift_right_logical<Constants::kShift>(sum);
}

// The code in the low byte of each lane; the other bytes are junk.
template <typename Format>
TE_INLINE Vi encode_lanes(Vf x) {
  const Vi code =
      encode_magnitude_with_surplus<Format>(x) - set1_int(Fp8Constants<Format>::kSurplus);
  const Vi sign = shift_right_logical<24>(as_int(x)) & set1_int(0x80);
  const Vi low_seven_bits = code & set1_int(0x7F);
  return select_int(is_nan(x), set1_int(Format::kNaNCode), low_seven_bits | sign);
}

// The FP32 number whose exponent and mantissa fields are the code's, as if every code were normal.
template <typename Format>
constexpr float number_if_normal(int code) {
  constexpr int kRebias = (numerics::kFloatExponentBias - Format::kBias)
                          << numerics::kFloatMantissaWidth;
  return numerics::float_of_bits(
      static_cast<uint32_t>((code << Fp8Constants<Format>::kShift) + kRebias));
}

// Lanes from codes (the other bytes of a lane are 0), exact; NaN codes give a quiet NaN.
template <typename Format>
TE_INLINE Vf decode_lanes(Vi codes) {
  constexpr int kFirstNaN =
      Format::kFirstSpecial + (Format::kFirstSpecial != Format::kNaNCode ? 1 : 0);
  const Vf min_normal = set1(Fp8Constants<Format>::kMinNormal);
  const Vi shifted = shift_left<Fp8Constants<Format>::kShift>(codes & set1_int(0x7F));
  const Vf normal = as_float(shifted + as_int(set1(number_if_normal<Format>(0))));
  // A denormal code has no hidden bit: read it one binade up and take that bit's value away.
  const Vf denormal = as_float(shifted + as_int(min_normal)) - min_normal;
  Vf value = select(less(normal, min_normal), denormal, normal);
  if constexpr (kFirstNaN != Format::kFirstSpecial) {
    const Vf infinity = as_float(set1_int(static_cast<int32_t>(numerics::kFloatExponentBits)));
    value = select(less(normal, set1(number_if_normal<Format>(Format::kFirstSpecial))), value,
                   infinity);
  }
  const Vf nan = as_float(set1_int(static_cast<int32_t>(numerics::kFloatQuietNaN)));
  value = select(less(normal, set1(number_if_normal<Format>(kFirstNaN))), value, nan);
  return as_float(as_int(value) | shift_left<24>(codes & set1_int(0x80)));
}

// The low bytes of the lanes as kWidth bytes, and back.
#if TE_ISA_LEVEL >= 2
TE_INLINE __m128i low_bytes(Vi lanes) { return _mm512_cvtepi32_epi8(lanes.v); }
TE_INLINE void store_bytes(uint8_t* p, Vi lanes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), low_bytes(lanes));
}
TE_INLINE void store_bytes(uint8_t* p, Vi lanes, int64_t n) {
  _mm512_mask_cvtepi32_storeu_epi8(p, first_lanes(n).v, lanes.v);
}
TE_INLINE void stream_bytes(uint8_t* p, Vi lanes) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), low_bytes(lanes));
}
TE_INLINE Vi load_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
TE_INLINE Vi load_bytes(const uint8_t* p, int64_t n) {
  return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(n).v, p))};
}
#elif TE_ISA_LEVEL == 1
TE_INLINE int64_t low_bytes(Vi lanes) {
  const __m256i first_bytes = _mm256_set1_epi32(0x0C080400);  // per 128-bit half
  const __m256i halves = _mm256_shuffle_epi8(lanes.v, first_bytes);
  const __m256i joined =
      _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
  return _mm_cvtsi128_si64(_mm256_castsi256_si128(joined));
}
TE_INLINE void store_bytes(uint8_t* p, Vi lanes) {
  const int64_t bytes = low_bytes(lanes);
  __builtin_memcpy(p, &bytes, sizeof(bytes));
}
TE_INLINE void store_bytes(uint8_t* p, Vi lanes, int64_t n) {
  const int64_t bytes = low_bytes(lanes);
  __builtin_memcpy(p, &bytes, static_cast<uint64_t>(n));
}
TE_INLINE void stream_bytes(uint8_t* p, Vi lanes) {
  _mm_stream_si64(reinterpret_cast<long long*>(p), low_bytes(lanes));
}
TE_INLINE Vi load_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
TE_INLINE Vi load_bytes(const uint8_t* p, int64_t n) {
  uint8_t bytes[kWidth] = {};
  __builtin_memcpy(bytes, p, static_cast<uint64_t>(n));
  return load_bytes(bytes);
}
#else
TE_INLINE void store_bytes(uint8_t* p, Vi lanes, int64_t n = kWidth) {
  typedef uint8_t Byte4 __attribute__((vector_size(4)));
  const Byte4 bytes = __builtin_convertvector(lanes.v & 0xFF, Byte4);
  __builtin_memcpy(p, &bytes, static_cast<uint64_t>(n));
}
TE_INLINE void stream_bytes(uint8_t* p, Vi lanes) { store_bytes(p, lanes); }
TE_INLINE Vi load_bytes(const uint8_t* p, int64_t n = kWidth) {
  uint8_t bytes[kWidth] = {};
  __builtin_memcpy(bytes, p, static_cast<uint64_t>(n));
  return {Int4{bytes[0], bytes[1], bytes[2], bytes[3]}};
}
#endif

template <typename Format>
TE_INLINE void encode_store(uint8_t* p, Vf v) {
  store_bytes(p, encode_lanes<Format>(v));
}
template <typename Format>
TE_INLINE void encode_store(uint8_t* p, Vf v, int64_t n) {
  store_bytes(p, encode_lanes<Format>(v), n);
}
template <typename Format>
TE_INLINE Vf decode_load(const uint8_t* p) {
  return decode_lanes<Format>(load_bytes(p));
}
template <typename Format>
TE_INLINE Vf decode_load(const uint8_t* p, int64_t n) {
  return decode_lanes<Format>(load_bytes(p, n));
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
