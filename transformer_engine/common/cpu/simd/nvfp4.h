// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scales and codes of blocks of NVFP4: the vector form of numerics/nvfp4.h, bit for bit.
#pragma once

#include <transformer_engine/block_scaling.h>

#include "cpu/simd/e2m1_magnitudes.h"
#include "cpu/simd/fp8.h"
#include "cpu/simd/nvfp4_blocks.h"
#include "cpu/simd/philox.h"
#include "numerics/nvfp4.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

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

// Place of the blocks in their copy, for the random bits: lane i is row `row + i * row_step`, all
// with the same upper word.
struct BlocksPlace {
  int64_t row;
  int row_step;
  int64_t col;  // of element 0
  bool is_columnwise;
};

struct PackedBlocks {
  Vi scale_code;
  Vi words[2];  // codes of the elements 0 to 7, 8 to 15
};

// Round to nearest even where no |x * multiplier| reaches 7 and nothing is NaN.
#if TE_ISA_LEVEL >= 3
template <typename Elements>
TE_INLINE void encode_ordinary(const Elements& elements, Vf multiplier, Vi (&words)[2]) {
  const Vi signs = elements.signs();
  words[0] = encode_magnitudes<0>(elements, multiplier, signs);
  words[1] = encode_magnitudes<1>(elements, multiplier, signs);
}
#else
template <typename Elements>
TE_INLINE void encode_ordinary(const Elements& elements, Vf multiplier, Vi (&words)[2]) {
  TE_UNROLL
  for (int half = 0; half < 2; ++half) {
    Vf rounded[8];
    TE_UNROLL
    for (int i = 0; i < 8; ++i) {
      rounded[i] = round_e2m1(elements[8 * half + i] * multiplier);
    }
    words[half] = pack_e2m1(rounded);
  }
}
#endif

// What blocks are encoded with by the short way, and whether that may be taken: all numbers are
// tame; where a block is not 0 it is not tiny and its scale is neither denormal nor clamped; and
// the tensor's scale is neither tiny nor huge.
//
// Where a scale of normal size follows amax, |x| * multiplier is at most 6 * 17 / 16 and a little:
// E4M3 rounds down by at most 1 / 16 of itself; 464 still rounds to the largest scale. A target of
// 0 comes of an amax of 0. So nothing saturates. The factor of the transform may be moved from the
// elements to the tensor's scale: both are exact where amax is 0 or not below 2^-100.
struct OrdinaryScale {
  Vi code;
  Vf multiplier;
};

TE_INLINE bool is_ordinary(const numerics::Nvfp4Scale& tensor) {
  return tensor.scale > 0x1p-20F && tensor.scale < 0x1p90F;
}

class OrdinaryCheck {
 public:
  // NaN is above all numbers.
  TE_INLINE void add_amax(Vf amax) { largest_amax_ = max_int(largest_amax_, as_int(amax)); }

  // For elements that are `unit` times the vectors: 1, or the transform's factor.
  static TE_INLINE TensorScale with_unit(const TensorScale& tensor, float unit) {
    return {tensor.scale, tensor.over_six * set1(unit), tensor.inverse * set1(1.0F / unit)};
  }

  TE_INLINE OrdinaryScale scale(Vf amax, const TensorScale& tensor) {
    using Constants = Fp8Constants<numerics::E4M3>;
    const Vf target = amax * tensor.over_six;
    smallest_amax_ = min_unsigned(smallest_amax_, as_int(amax) - set1_int(1));
    largest_target_ = max_int(largest_target_, as_int(target));
    smallest_target_ = min_unsigned(smallest_target_, as_int(target) - set1_int(1));
    const Vf addend = as_float(as_int(max(target, set1(Constants::kMinNormal))) &
                               set1_int(static_cast<int32_t>(numerics::kFloatExponentBits))) *
                      set1(Constants::kStepsPerBinade);
    const Vf sum = addend + target;
    const Vi code = as_int(sum) + shift_right_logical<Constants::kShift>(as_int(sum));
    const Vf multiplier = set1(1.0F) / ((sum - addend) * tensor.inverse);
    return {(code - set1_int(Constants::kSurplus)) & set1_int(0x7F),
            min(multiplier, set1(numerics::kFloatMax))};
  }

  TE_INLINE bool is_passed() const {
    constexpr float kMinNormal = Fp8Constants<numerics::E4M3>::kMinNormal;
    return !any(above(largest_amax_, kTameLimit) | above(largest_target_, 464.0F) |
                below(smallest_target_, kMinNormal) | below(smallest_amax_, 0x1p-100F));
  }

 private:
  // Positive floats are ordered as their bits are; less one, 0 is the largest unsigned number.
  static TE_INLINE Mask above(Vi bits, float limit) { return !less(as_float(bits), set1(limit)); }
  static TE_INLINE Mask below(Vi bits_less_one, float limit) {
    return less(as_float(bits_less_one & set1_int(INT32_MAX)), set1(limit));
  }

  Vi largest_amax_ = set1_int(0);
  Vi smallest_amax_ = set1_int(-1);
  Vi largest_target_ = set1_int(0);
  Vi smallest_target_ = set1_int(-1);
};

// What encode_ordinary_blocks reads of columns, after the transform.
template <bool kStochastic>
struct OrdinaryColumns {
  Blocks v;

  // Returns their amax.
  TE_INLINE Vf take(const Blocks& from) {
    Blocks magnitudes;
    TE_UNROLL
    for (int i = 0; i < kNvfp4Block; ++i) {
      v[i] = from[i];
      magnitudes[i] = abs(from[i]);
    }
    return amax_of_magnitudes(magnitudes);
  }
  TE_INLINE Vf operator[](int i) const { return v[i]; }
};
#if TE_ISA_LEVEL >= 3
template <>
struct OrdinaryColumns<false> {
  Blocks magnitudes;
  Vi sign_bits;

  TE_INLINE Vf take(const Blocks& from) {
    sign_bits = collect_signs(from);
    TE_UNROLL
    for (int i = 0; i < kNvfp4Block; ++i) {
      magnitudes[i] = abs(from[i]);
    }
    return amax_of_magnitudes(magnitudes);
  }
  TE_INLINE Vf magnitude(int i) const { return magnitudes[i]; }
  TE_INLINE Vi signs() const { return sign_bits; }
};
#endif

struct BlocksTask {
  TensorScale tensor;
  BlocksPlace place;
  const QuantizeNvfp4Args* options;
};

// See encode_e2m1_stochastic in numerics/nvfp4.h, for |y| of at most 6; the result is as that of
// round_e2m1. `random` has 16 bits per lane.
TE_INLINE Vf round_e2m1_stochastic(Vf y, Vi random) {
  constexpr E2m1Addends kAddends = {numerics::kStochasticHalfStepAddend,
                                    numerics::kStochasticOneStepAddend,
                                    numerics::kStochasticTwoStepAddend};
  const Vi code_and_k = as_int(y + e2m1_addend(y, kAddends));
  return copysign(as_float(shift_right_logical<16>(code_and_k + random)), y);
}

TE_INLINE Vi rows_of_lanes(const BlocksPlace& place) {
  float bits[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    bits[i] = numerics::float_of_bits(static_cast<uint32_t>(place.row + i * place.row_step));
  }
  return as_int(load(bits));
}

// For all 16 elements: the first counter is that of elements 0 to 7.
TE_INLINE numerics::PhiloxWords<RandomWord> random_words(const BlocksPlace& place, uint64_t seed) {
  const auto of_half = [&](int half) {
    return numerics::nvfp4_random_counter(place.row, place.col + half * numerics::kNvfp4RandomGroup,
                                          place.is_columnwise);
  };
  const auto first = of_half(0);
  const auto second = of_half(1);
  const Vi rows = rows_of_lanes(place);
  numerics::PhiloxWords<RandomWord> counter;
  counter.word[0] = random_word(rows, rows);
  TE_UNROLL
  for (int i = 1; i < 4; ++i) {
    counter.word[i] = random_word(set1_int(static_cast<int32_t>(first.word[i])),
                                  set1_int(static_cast<int32_t>(second.word[i])));
  }
  return numerics::philox4x32_10(counter, numerics::philox_key(seed));
}

// Codes of 8 elements; `saturate` brings numbers to at most 6.
template <int kHalf, typename Elements, typename Saturate>
TE_INLINE Vi encode_stochastic(const Elements& elements, Vf multiplier,
                               const numerics::PhiloxWords<RandomWord>& random,
                               const Saturate& saturate) {
  Vf rounded[8];
  TE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const Vi bits = lanes_of<kHalf>(random.word[i / 2]);
    rounded[i] =
        round_e2m1_stochastic(saturate(elements[8 * kHalf + i] * multiplier),
                              i % 2 == 0 ? bits & set1_int(0xFFFF) : shift_right_logical<16>(bits));
  }
  return pack_e2m1(rounded);
}

template <bool kStochastic, typename Elements>
TE_INLINE PackedBlocks encode_ordinary_blocks(const Elements& elements, const OrdinaryScale& scale,
                                              const BlocksPlace& place, uint64_t seed) {
  PackedBlocks packed;
  packed.scale_code = scale.code;
  if constexpr (kStochastic) {
    const auto random = random_words(place, seed);
    const auto saturate = [](Vf y) { return saturate_number(y); };
    packed.words[0] = encode_stochastic<0>(elements, scale.multiplier, random, saturate);
    packed.words[1] = encode_stochastic<1>(elements, scale.multiplier, random, saturate);
  } else {
    encode_ordinary(elements, scale.multiplier, packed.words);
  }
  return packed;
}

// Error of the blocks under a scale: numerics/nvfp4.h.
TE_INLINE Vf error_of(const Blocks& v, const BlockScale& block, const TensorScale& tensor,
                      FourOverSix mode) {
  Blocks errors;
  TE_UNROLL
  for (int i = 0; i < kNvfp4Block; ++i) {
    const Vf y = saturate_e2m1(v[i] * block.multiplier);
    const Vf addend = e2m1_addend(y, kNearestAddends);
    const Vf value = (y + addend) - addend;
    const Vf error = abs(value * block.value - v[i] * tensor.scale);
    errors[i] = mode == FourOverSix::kMeanSquaredError ? error * error : error;
  }
  return numerics::sum_by_halves(errors);
}

// Any elements and any rounding; `target` as for block_scale.
[[gnu::noinline]] PackedBlocks quantize_any_blocks(const Blocks& v, Vf target,
                                                   const BlocksTask& task) {
  const BlockScale block = block_scale(target, task.tensor);
  PackedBlocks packed;
  packed.scale_code = block.code;
  if (task.options->is_stochastic) {
    const auto random = random_words(task.place, task.options->seed);
    const auto saturate = [](Vf y) { return saturate_e2m1(y); };
    packed.words[0] = encode_stochastic<0>(v, block.multiplier, random, saturate);
    packed.words[1] = encode_stochastic<1>(v, block.multiplier, random, saturate);
    return packed;
  }
  for (int half = 0; half < 2; ++half) {
    Vf rounded[8];
    TE_UNROLL
    for (int i = 0; i < 8; ++i) {
      rounded[i] = round_e2m1(saturate_e2m1(v[8 * half + i] * block.multiplier));
    }
    packed.words[half] = pack_e2m1(rounded);
  }
  return packed;
}

// What the scale of each block rounds; four over six takes the smaller error.
[[gnu::noinline]] Vf block_target(const Blocks& v, const BlocksTask& task) {
  const Vf target = amax_of_any(v) * task.tensor.over_six;
  const FourOverSix mode = task.options->four_over_six;
  if (mode == FourOverSix::kNone) {
    return target;
  }
  const Vf to_four = target * set1(1.5F);
  const Vf error_of_six = error_of(v, block_scale(target, task.tensor), task.tensor, mode);
  const Vf error_of_four = error_of(v, block_scale(to_four, task.tensor), task.tensor, mode);
  return select(less(error_of_four, error_of_six), to_four, target);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
