// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// NVFP4: blocks of 16 E2M1 elements q, one E4M3 scale d per block, one FP32 amax per tensor (or
// row). An element stands for q * d * amax / (6 * e4m3_max), e4m3_max = 448 or 256. All arithmetic
// is FP32, each operation rounded to nearest even, in the order written here:
//   S = (6 * e4m3_max) / amax     1 where amax is 0, infinite or NaN; at most the largest FP32
//   d = E4M3(block_amax * (S * fp32(1/6)))             saturating at 448
//   e = min(1 / (float(d) * (1 / S)), largest FP32)    d = 0 gives the largest FP32
//   q = E2M1(x * e)                                    saturating at 6
// block_amax skips NaN. An element that is NaN becomes +6 (code 7), infinities become +-6, zeros
// keep their signs. In a block whose d is 0 (block_amax below 2^-10 * 6 / S, a tie included)
// elements that are not 0 become +-6 mostly, and stand for 0 all the same.
//
// Four over six (arXiv:2512.02010): a block's amax maps to 6 as above, or to 4 by
// d4 = E4M3((block_amax * (S * fp32(1/6))) * 1.5); d4 is taken where its error is smaller. The
// error of a block is the sum over |q * float(d) - x * S|, or over the square of that.
#pragma once

#include "numerics/minifloat.h"
#include "numerics/philox.h"
#include "numerics/scale.h"

namespace transformer_engine::numerics {

inline constexpr int kNvfp4Block = 16;

// Of one amax: all that blocks need of it.
struct Nvfp4Scale {
  float scale;     // S
  float over_six;  // S * fp32(1/6)
  float inverse;   // 1 / S
};

TE_NUMERIC Nvfp4Scale nvfp4_scale(float amax, float e4m3_max) {
  const float scale = is_usable_amax(amax) ? saturating_scale(6.0F * e4m3_max, amax) : 1.0F;
  return {scale, scale * (1.0F / 6.0F), 1.0F / scale};
}

// d: the E4M3 code of a block's scale that maps its amax to 6, and to 4.
TE_NUMERIC uint8_t nvfp4_block_scale(float block_amax, const Nvfp4Scale& tensor) {
  return encode<E4M3>(block_amax * tensor.over_six);
}
TE_NUMERIC uint8_t nvfp4_block_scale_to_four(float block_amax, const Nvfp4Scale& tensor) {
  return encode<E4M3>(block_amax * tensor.over_six * 1.5F);
}

// e: what elements are multiplied by.
TE_NUMERIC float nvfp4_multiplier(uint8_t block_scale, const Nvfp4Scale& tensor) {
  const float multiplier = 1.0F / (decode<E4M3>(block_scale) * tensor.inverse);
  return multiplier < kFloatMax ? multiplier : kFloatMax;
}

// Stochastic rounding of x * e with 16 random bits r, uniform in [0, 2^16): for a magnitude v and
// its neighbours lo <= v < hi let k = 2^16 * (v - lo) / (hi - lo), rounded to nearest even; v goes
// up where k + r >= 2^16. So it does with probability k / 2^16, which differs from the exact one by
// at most 2^-17 and is exact for multiples of 2^-16. Values of E2M1 do not change. Saturates; NaN
// becomes code 7.
// One addition rounds to k: an addend per range of v makes FP32's last bit worth 2^-16 steps, which
// are 1/2 below 2, 1 below 4 and 2 above, and puts the code of lo above the 16 bits of k.
inline constexpr float kStochasticHalfStepAddend = 64.0F;
inline constexpr float kStochasticOneStepAddend = 128.0F + 2.0F;
inline constexpr float kStochasticTwoStepAddend = 256.0F + 8.0F;

TE_NUMERIC uint8_t encode_e2m1_stochastic(float value, uint16_t random) {
  if (is_nan(value)) {
    return E2M1::kNaNCode;
  }
  const float absolute = magnitude(value);
  const float clamped = absolute < E2M1::kMax ? absolute : E2M1::kMax;
  const float addend = clamped < 2.0F   ? kStochasticHalfStepAddend
                       : clamped < 4.0F ? kStochasticOneStepAddend
                                        : kStochasticTwoStepAddend;
  const uint32_t code_and_k = bits_of_float(clamped + addend) & kFloatMantissaBits;
  const uint8_t sign = (bits_of_float(value) & kFloatSignBit) != 0 ? E2M1::kSignBit : uint8_t{0};
  return static_cast<uint8_t>(sign | ((code_and_k + random) >> 16));
}

// The random bits of element (row, col) of a copy, as stored: from the logical position alone, so
// the same for any number of threads, tiling, padding and instruction set. Philox4x32-10 with the
// seed as its key and the counter {row (low word), row (high word), col / 8, copy}, copy = 0 for
// the rowwise and 1 for the columnwise one, gives the bits of 8 neighbours: word (col % 8) / 2, its
// low half for an even column.
inline constexpr int kNvfp4RandomGroup = 8;

TE_NUMERIC PhiloxWords<uint32_t> nvfp4_random_counter(int64_t row, int64_t col,
                                                      bool is_columnwise) {
  return {{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
           static_cast<uint32_t>(col / kNvfp4RandomGroup), is_columnwise ? 1U : 0U}};
}
TE_NUMERIC uint16_t nvfp4_random_bits(const PhiloxWords<uint32_t>& words, int64_t col) {
  const uint32_t word = words.word[col % kNvfp4RandomGroup / 2];
  return static_cast<uint16_t>(col % 2 == 0 ? word : word >> 16);
}

// Sum of 16 values (or vectors) by halves: i and i + 8, then i + 4, i + 2, i + 1.
template <typename V>
TE_NUMERIC V sum_by_halves(V (&v)[kNvfp4Block]) {
  for (int half = kNvfp4Block / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      v[i] = v[i] + v[i + half];
    }
  }
  return v[0];
}

// |q * d - x * S|: the error of an element in units of 1 / S, where all numbers are of ordinary
// size. The product q * d is exact. A block's errors are summed by halves along the block, those of
// the 16 blocks of a square tile by halves along their rows of the (untransposed) input.
TE_NUMERIC float nvfp4_element_error(float x, uint8_t code, uint8_t block_scale, float scale) {
  return magnitude(decode<E2M1>(code) * decode<E4M3>(block_scale) - x * scale);
}

}  // namespace transformer_engine::numerics
