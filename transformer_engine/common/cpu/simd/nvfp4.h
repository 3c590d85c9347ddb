// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of NVFP4 side by side: a lane is a block, v[i] has element i of every block. So amax,
// scales, transform and packing are operations between vectors, for rows (after a transpose of the
// input) and for columns (as loaded) alike. The vector form of numerics/nvfp4.h, bit for bit.
#pragma once

#include <transformer_engine/block_scaling.h>

#include "cpu/simd/e2m1.h"
#include "cpu/simd/fp8.h"
#include "cpu/simd/philox.h"
#include "numerics/nvfp4.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kNvfp4Block = numerics::kNvfp4Block;

typedef Vf Blocks[kNvfp4Block];

// numerics::Nvfp4Scale per lane.
struct TensorScale {
  Vf scale, over_six, inverse;
};

struct BlockScale {
  Vi code;
  Vf value;       // of the code
  Vf multiplier;  // of the elements
};

// `target` >= 0 is what the E4M3 scale rounds.
TE_INLINE BlockScale block_scale(Vf target, const TensorScale& tensor) {
  using E4M3 = numerics::E4M3;
  using Constants = Fp8Constants<E4M3>;
  // Rounded by the sum whose last bits are the code (fp8.h).
  const Vf clamped = min(target, set1(E4M3::kMax));
  const Vf binade = as_float(as_int(max(clamped, set1(Constants::kMinNormal))) &
                             set1_int(static_cast<int32_t>(numerics::kFloatExponentBits)));
  const Vf addend = binade * set1(Constants::kStepsPerBinade);
  const Vf sum = addend + clamped;
  const Vi code = as_int(sum) + shift_right_logical<Constants::kShift>(as_int(sum));
  BlockScale result;
  result.code = (code - set1_int(Constants::kSurplus)) & set1_int(0x7F);
  result.value = sum - addend;
  result.multiplier = min(set1(1.0F) / (result.value * tensor.inverse), set1(numerics::kFloatMax));
  return result;
}

// max |x| per block, and whether all elements are finite.
struct BlocksAmax {
  Vf amax;
  bool is_finite;
};
TE_INLINE BlocksAmax amax_of(const Blocks& v) {
  // Four chains, since one would wait for the latency of max. 0 * x is 0, or NaN for NaN and Inf.
  Vf largest[4];
  Vf poison[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    largest[i] = zero();
    poison[i] = zero();
  }
#pragma GCC unroll 16
  for (int i = 0; i < kNvfp4Block; ++i) {
    largest[i % 4] = max_magnitude(v[i], largest[i % 4]);
    poison[i % 4] = multiply_add_exact_product(v[i], zero(), poison[i % 4]);
  }
  const Vf any_poison = (poison[0] + poison[1]) + (poison[2] + poison[3]);
  BlocksAmax result = {max(max(largest[0], largest[1]), max(largest[2], largest[3])), true};
  if (any(is_nan(any_poison))) {
    result = {zero(), false};
    for (int i = 0; i < kNvfp4Block; ++i) {
      result.amax = max_abs(v[i], result.amax);
    }
  }
  return result;
}

struct PackedBlocks {
  Vi scale_code;
  Vi words[2];  // elements 0 to 7, 8 to 15
};

// Round to nearest even. `is_ordinary`: no NaN, and no |x * multiplier| of 7 or more.
TE_INLINE void encode_nearest(const Blocks& v, Vf multiplier, bool is_ordinary, Vi (&words)[2]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Vf rounded[8];
    if (is_ordinary) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        rounded[i] = round_e2m1(v[8 * half + i] * multiplier);
      }
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        rounded[i] = round_e2m1(saturate_e2m1(v[8 * half + i] * multiplier));
      }
    }
    words[half] = pack_e2m1(rounded);
  }
}

// Where a scale of normal size follows amax, |x| * multiplier is at most 6 * 17 / 16 and a little:
// E4M3 rounds by at most 1 / 16 down. 464 still rounds to the largest scale.
TE_INLINE bool saturates(Vf target, Vf amax) {
  const Mask is_denormal = less(target, set1(Fp8Constants<numerics::E4M3>::kMinNormal));
  return any((is_denormal & less(zero(), amax)) | less(set1(464.0F), target));
}

// See encode_e2m1_stochastic in numerics/nvfp4.h; the result is as that of round_e2m1. `random` has
// 16 bits per lane.
TE_INLINE Vf round_e2m1_stochastic(Vf y, Vi random) {
  const Vf saturated = saturate_e2m1(y);
  const Vf absolute = abs(saturated);
  const Vf addend = abs(e2m1_addend(saturated));
  const Vf nearest = absolute + addend;
  const Mask is_above = less(absolute, nearest - addend);
  const Vi below = as_int(nearest) - select_int(is_above, set1_int(1), set1_int(0));
  const Vf lower = as_float(below) - addend;
  // 2^16 / step
  const Vf per_step = select(less(absolute, set1(2.0F)), set1(0x1p17F),
                             select(less(absolute, set1(4.0F)), set1(0x1p16F), set1(0x1p15F)));
  // 2^23 + random as a bit pattern, less 2^23 - 1/2.
  const Vf half_past = as_float(random | as_int(set1(0x1p23F))) - set1(0x1p23F - 0.5F);
  const Mask is_up = less(half_past, (absolute - lower) * per_step);
  const Vi code = below + select_int(is_up, set1_int(1), set1_int(0));
  return copysign(as_float(code), saturated);
}

// Place of the blocks in their copy, for the random bits: lane i is row `row + i`, below the next
// multiple of 16.
struct BlocksPlace {
  int64_t row;
  int64_t col;  // of element 0
  bool is_columnwise;
};

TE_INLINE Vi rows_of_lanes(int64_t row) {
  alignas(64) static constexpr int32_t kLanes[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  Vf lanes;
  __builtin_memcpy(&lanes, kLanes, sizeof(lanes));
  return as_int(lanes) + set1_int(static_cast<int32_t>(row));
}

TE_INLINE void encode_stochastic(const Blocks& v, Vf multiplier, const BlocksPlace& place,
                                 uint64_t seed, Vi (&words)[2]) {
  const Vi low_half = set1_int(0xFFFF);
  for (int half = 0; half < 2; ++half) {
    const auto scalar = numerics::nvfp4_random_counter(
        place.row, place.col + half * numerics::kNvfp4RandomGroup, place.is_columnwise);
    numerics::PhiloxWords<Vi> counter;
    counter.word[0] = rows_of_lanes(place.row);
    for (int i = 1; i < 4; ++i) {
      counter.word[i] = set1_int(static_cast<int32_t>(scalar.word[i]));
    }
    const auto random = numerics::philox4x32_10(counter, numerics::philox_key(seed));
    Vf rounded[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vf* pair = v + 8 * half + 2 * i;
      const Vi bits = random.word[i];
      rounded[2 * i] = round_e2m1_stochastic(pair[0] * multiplier, bits & low_half);
      rounded[2 * i + 1] =
          round_e2m1_stochastic(pair[1] * multiplier, shift_right_logical<16>(bits));
    }
    words[half] = pack_e2m1(rounded);
  }
}

// Error of the blocks under a scale: numerics/nvfp4.h.
TE_INLINE Vf error_of(const Blocks& v, const BlockScale& block, const TensorScale& tensor,
                      FourOverSix mode) {
  Blocks errors;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const Vf y = saturate_e2m1(v[i] * block.multiplier);
    const Vf addend = e2m1_addend(y);
    const Vf value = (y + addend) - addend;
    const Vf error = abs(value * block.value - v[i] * tensor.scale);
    errors[i] = mode == FourOverSix::kMeanSquaredError ? error * error : error;
  }
  return numerics::sum_by_halves(errors);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
