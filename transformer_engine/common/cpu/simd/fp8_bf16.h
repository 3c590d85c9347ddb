// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Long runs of BF16 to FP8 and back, a register of codes at a time: the hot loops of training.
// kBulk elements per step (64 on AVX-512, 32 on AVX2); the portable build has none and uses fp8.h.
//
//   encode_bulk<Format>(p, scale, magnitudes)   codes of kBulk BF16 times scale, for inputs that
//       are not NaN and a positive finite scale; magnitudes collects max |input|
//   encode_registers<Format>(registers, scales)  the same with a scale per element, no maximum
//   decode_bf16<Format>(codes, out, n)          exact BF16 of n codes
//
// BF16 is read as 32-bit lanes, the even elements shifted up and the odd ones masked, so that
// widening needs no shuffle. Codes are merged back by bytes; signs come straight from the input.
#pragma once

#include "cpu/simd/fp8.h"
#include "numerics/half.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

#if TE_ISA_LEVEL >= 2
constexpr int kBulk = 64;
typedef __m512i Register;
TE_INLINE Register load_register(const void* p) { return _mm512_loadu_si512(p); }
TE_INLINE void store_register(void* p, Register bytes) { _mm512_storeu_si512(p, bytes); }
TE_INLINE void stream_register(void* p, Register bytes) {
  _mm512_stream_si512(static_cast<__m512i*>(p), bytes);
}
#elif TE_ISA_LEVEL == 1
constexpr int kBulk = 32;
typedef __m256i Register;
TE_INLINE Register load_register(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TE_INLINE void store_register(void* p, Register bytes) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), bytes);
}
TE_INLINE void stream_register(void* p, Register bytes) {
  _mm256_stream_si256(static_cast<__m256i*>(p), bytes);
}
#endif

#if TE_ISA_LEVEL >= 1

// Largest BF16 magnitude per 16-bit lane, as an integer: NaN is above kBf16Infinity and shows.
constexpr uint16_t kBf16Infinity = 0x7F80;
struct Magnitudes {
  Register v;
};

// max over the lanes
TE_INLINE uint16_t reduce(Magnitudes magnitudes) {
  uint16_t lanes[sizeof(Register) / sizeof(uint16_t)];
  store_register(lanes, magnitudes.v);
  uint16_t largest = 0;
  for (const uint16_t lane : lanes) {
    largest = lane > largest ? lane : largest;
  }
  return largest;
}

// What kBulk elements are read as, and the scales of the even and the odd elements of each half.
struct Bf16Registers {
  Register first;
  Register second;
};
struct HalfScales {
  Vf even;
  Vf odd;
};
struct BulkScales {
  HalfScales first;
  HalfScales second;
};
TE_INLINE Bf16Registers load_bf16_registers(const void* p) {
  const auto* in = static_cast<const uint16_t*>(p);
  return {load_register(in), load_register(in + kBulk / 2)};
}

// Codes with surplus (fp8.h) of the even and the odd elements of one register of BF16.
struct EvenOdd {
  Vi even;
  Vi odd;
};
template <typename Format>
TE_INLINE EvenOdd encode_even_odd(Register bf16, HalfScales scale) {
  const Vi pairs = {bf16};
  const Vf even = as_float(shift_left<16>(pairs)) * scale.even;
  const Vf odd = as_float(pairs & set1_int(static_cast<int32_t>(0xFFFF0000U))) * scale.odd;
  return {encode_magnitude_with_surplus<Format>(even), encode_magnitude_with_surplus<Format>(odd)};
}

#endif

#if TE_ISA_LEVEL >= 2

TE_INLINE void collect(Magnitudes& so_far, Register bf16) {
  so_far.v = _mm512_max_epu16(so_far.v, _mm512_and_si512(bf16, _mm512_set1_epi16(INT16_MAX)));
}

#if TE_ISA_LEVEL >= 3

struct ByteIndex {
  alignas(64) uint8_t index[64];
};
// Bytes 4i of the even lanes and of the odd lanes (64 + 4i), alternating, in both halves.
constexpr ByteIndex merge_even_odd_index() {
  ByteIndex result{};
  for (int i = 0; i < 64; ++i) {
    result.index[i] = static_cast<uint8_t>((i % 2 == 0 ? 0 : 64) + i % 32 / 2 * 4);
  }
  return result;
}
// Upper byte of each of 64 BF16 in two registers.
constexpr ByteIndex upper_bytes_index() {
  ByteIndex result{};
  for (int i = 0; i < 64; ++i) {
    result.index[i] = static_cast<uint8_t>(2 * i + 1);
  }
  return result;
}
constexpr ByteIndex kMergeEvenOdd = merge_even_odd_index();
constexpr ByteIndex kUpperBytes = upper_bytes_index();

template <typename Format>
TE_INLINE Register encode_registers(const Bf16Registers& in, const BulkScales& scale) {
  const EvenOdd a = encode_even_odd<Format>(in.first, scale.first);
  const EvenOdd b = encode_even_odd<Format>(in.second, scale.second);
  const __m512i merge = load_register(kMergeEvenOdd.index);
  const __m512i codes =
      _mm512_mask_blend_epi64(0xF0, _mm512_permutex2var_epi8(a.even.v, merge, a.odd.v),
                              _mm512_permutex2var_epi8(b.even.v, merge, b.odd.v));
  const __m512i signs =
      _mm512_permutex2var_epi8(in.first, load_register(kUpperBytes.index), in.second);
  const __m512i surplus = _mm512_set1_epi8(static_cast<char>(Fp8Constants<Format>::kSurplus));
  // (codes - surplus) | (signs & 0x80)
  return _mm512_ternarylogic_epi32(_mm512_sub_epi8(codes, surplus), signs,
                                   _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
}

#else

template <typename Format>
TE_INLINE __m256i encode_half(Register bf16, HalfScales scale) {
  const EvenOdd sums = encode_even_odd<Format>(bf16, scale);
  const __m512i merged =
      _mm512_mask_blend_epi16(0xAAAAAAAAU, sums.even.v, shift_left<16>(sums.odd).v);
  const __m512i codes = _mm512_sub_epi16(merged, _mm512_set1_epi16(Fp8Constants<Format>::kSurplus));
  // The low bytes of (signs & 0x80) | (codes & ~0x80); the upper ones are dropped.
  return _mm512_cvtepi16_epi8(
      _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x80), _mm512_srli_epi16(bf16, 8), codes, 0xCA));
}

template <typename Format>
TE_INLINE Register encode_registers(const Bf16Registers& in, const BulkScales& scale) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(encode_half<Format>(in.first, scale.first)),
                            encode_half<Format>(in.second, scale.second), 1);
}

#endif

#elif TE_ISA_LEVEL == 1

TE_INLINE void collect(Magnitudes& so_far, Register bf16) {
  so_far.v = _mm256_max_epu16(so_far.v, _mm256_and_si256(bf16, _mm256_set1_epi16(INT16_MAX)));
}

// Codes in 16-bit lanes.
template <typename Format>
TE_INLINE __m256i encode_half(Register bf16, HalfScales scale) {
  const EvenOdd sums = encode_even_odd<Format>(bf16, scale);
  const __m256i merged = _mm256_blend_epi16(sums.even.v, shift_left<16>(sums.odd).v, 0xAA);
  const __m256i codes = _mm256_sub_epi16(merged, _mm256_set1_epi16(Fp8Constants<Format>::kSurplus));
  const __m256i signs = _mm256_and_si256(_mm256_srli_epi16(bf16, 8), _mm256_set1_epi16(0x80));
  return _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi16(0x7F)), signs);
}

template <typename Format>
TE_INLINE Register encode_registers(const Bf16Registers& in, const BulkScales& scale) {
  const __m256i packed = _mm256_packus_epi16(encode_half<Format>(in.first, scale.first),
                                             encode_half<Format>(in.second, scale.second));
  return _mm256_permute4x64_epi64(packed, 0xD8);  // packing works on 128-bit halves
}

#endif

#if TE_ISA_LEVEL >= 1

template <typename Format>
TE_INLINE Register encode_bulk(const Bf16* p, Vf scale, Magnitudes& magnitudes) {
  const Bf16Registers in = load_bf16_registers(p);
  collect(magnitudes, in.first);
  collect(magnitudes, in.second);
  return encode_registers<Format>(in, {{scale, scale}, {scale, scale}});
}

#endif

// Upper and lower bytes of the BF16 value of every code without its sign: two tables of 128.
template <typename Format>
struct Bf16OfCode {
  alignas(64) uint8_t lower[128];
  alignas(64) uint8_t upper[128];
};
template <typename Format>
constexpr Bf16OfCode<Format> bf16_of_codes() {
  Bf16OfCode<Format> table{};
  for (int code = 0; code < 128; ++code) {
    const uint16_t bits =
        numerics::bf16_from_float(numerics::decode<Format>(static_cast<uint8_t>(code)));
    table.lower[code] = static_cast<uint8_t>(bits & 0xFF);
    table.upper[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}
template <typename Format>
constexpr Bf16OfCode<Format> kBf16OfCode = bf16_of_codes<Format>();

template <typename Format>
TE_INLINE Bf16 decode_one_bf16(uint8_t code) {
  const auto& table = kBf16OfCode<Format>;
  const int sign_and_upper = (code & 0x80) | table.upper[code & 0x7F];
  return {static_cast<uint16_t>((sign_and_upper << 8) | table.lower[code & 0x7F])};
}

#if TE_ISA_LEVEL >= 3

// BF16 values of kBulk codes, exact.
template <typename Format>
TE_INLINE Bf16Registers decode_registers(Register codes) {
  const auto& table = kBf16OfCode<Format>;
  // Unpacking works on 128-bit lanes: give lane i the eight codes i and the eight codes i + 4.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i index = _mm512_permutexvar_epi64(order, codes);
  const __m512i lower =
      _mm512_permutex2var_epi8(load_register(table.lower), index, load_register(table.lower + 64));
  const __m512i magnitude =
      _mm512_permutex2var_epi8(load_register(table.upper), index, load_register(table.upper + 64));
  const __m512i upper =
      _mm512_ternarylogic_epi32(magnitude, index, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
  return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
}

// BF16 times FP32, rounded to FP32 and then to BF16.
TE_INLINE Register scale_register(Register bf16, HalfScales scale) {
  const Vi pairs = {bf16};
  const Vf even = as_float(shift_left<16>(pairs)) * scale.even;
  const Vf odd = as_float(pairs & set1_int(static_cast<int32_t>(0xFFFF0000U))) * scale.odd;
  return _mm512_mask_blend_epi16(0xAAAAAAAAU, _mm512_srli_epi32(round_bf16(even), 16),
                                 round_bf16(odd));
}

#endif

// out[i] = BF16 value of codes[i]: exact, as every FP8 value is a BF16 value. kStream needs `out`
// aligned to 64 bytes and stores around the caches (where the instruction set gains by it).
template <typename Format, bool kStream = false>
TE_INLINE void decode_bf16(const uint8_t* codes, Bf16* out, int64_t n) {
  int64_t i = 0;
#if TE_ISA_LEVEL >= 3
  for (; i + kBulk <= n; i += kBulk) {
    const auto [first, second] = decode_registers<Format>(load_register(codes + i));
    if constexpr (kStream) {
      stream_register(out + i, first);
      stream_register(out + i + 32, second);
    } else {
      store_register(out + i, first);
      store_register(out + i + 32, second);
    }
  }
#else
  for (; i + kWidth <= n; i += kWidth) {
    store(out + i, decode_load<Format>(codes + i));
  }
#endif
  for (; i < n; ++i) {
    out[i] = decode_one_bf16<Format>(codes[i]);
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
