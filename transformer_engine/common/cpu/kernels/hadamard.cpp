// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// max |x| before and after the transform of 16 rows at a time (numerics/hadamard.h), from one pass
// over the input, a square at a time (simd/nvfp4_square.h). Read: the input once.
//
// The sum of a column's 16 magnitudes bounds what the transform makes of it. Where that is below
// the maximum so far, as it soon is for most of a tensor, the transform is left out: 2.6 times less
// work for normally distributed numbers.
#include "cpu/nvfp4_kernels.h"
#include "cpu/simd/nvfp4_square.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Some squares further along the rows (4096 x 8192: 1.5 times as fast).
constexpr int64_t kPrefetchAhead = 512;

// Largest magnitudes so far; after the transform without its factor.
struct AmaxSoFar {
  Vf before = zero();
  Vf after = zero();
  Vf after_in_all_lanes = zero();

  TE_INLINE void add_after(Vf amax) {
    after = max(amax, after);
    after_in_all_lanes = set1(reduce_max(after));
  }
};

// max |v * H16|. Of the last stage, |a + b| or |a - b| is |a| + |b|, and rounds alike.
TE_INLINE Vf transformed_amax(Blocks& v) {
  numerics::hadamard_butterflies<1>(v);
  numerics::hadamard_butterflies<2>(v);
  numerics::hadamard_butterflies<4>(v);
  Vf largest[2] = {zero(), zero()};
  TE_UNROLL
  for (int i = 0; i < kNvfp4Block / 2; ++i) {
    largest[i % 2] = max(abs(v[i]) + abs(v[i + kNvfp4Block / 2]), largest[i % 2]);
  }
  return max(largest[0], largest[1]);
}

// With NaN, infinities or overflow on the way.
template <typename Square>
[[gnu::noinline]] void add_any(const Square& square, const Square& flipped, AmaxSoFar& amax) {
  for (int g = 0; g < Square::kGroups; ++g) {
    Blocks v;
    square.columns(g, v);
    amax.before = max(amax_of_any(v), amax.before);
    flipped.columns(g, v);
    numerics::walsh_hadamard(v);
    amax.add_after(amax_of_any(v));
  }
}

template <typename Square>
TE_INLINE void add_square(const Square& square, const typename Square::Signs& signs,
                          AmaxSoFar& amax) {
  const Vf largest = square.largest();
  const bool is_tame = !any(!less(largest, set1(kTameLimit)));
  if (is_tame) {
    amax.before = max(largest, amax.before);
    if (!any(less(amax.after_in_all_lanes, square.transform_bound()))) {
      return;
    }
  }
  Square flipped = square;
  flipped.flip_signs(signs);
  if (!is_tame) {
    add_any(square, flipped, amax);
    return;
  }
  TE_UNROLL
  for (int g = 0; g < Square::kGroups; ++g) {
    Blocks v;
    flipped.columns(g, v);
    amax.add_after(transformed_amax(v));
  }
}

template <typename T>
HadamardAmax hadamard_amax(const HadamardAmaxStrip& strip) {
  typedef typename SquareOf<T>::Type Square;
  const typename Square::Signs signs(strip.signs);
  AmaxSoFar amax;
  for (int64_t row = 0; row < strip.rows; row += kNvfp4Block) {
    const T* in = static_cast<const T*>(strip.input) + row * strip.input_stride;
    const int64_t rows = strip.rows - row < kNvfp4Block ? strip.rows - row : kNvfp4Block;
    for (int64_t col = 0; col < strip.cols; col += Square::kCols) {
      const int64_t left = strip.cols - col;
      Square square;
      load_square(square, in + col, strip.input_stride, rows,
                  left < Square::kCols ? left : Square::kCols, kPrefetchAhead);
      add_square(square, signs, amax);
    }
  }
  return {reduce_max(amax.before), reduce_max(amax.after * set1(numerics::kHadamardScale))};
}

}  // namespace

const HadamardKernels hadamard_kernels = {
    .amax = {&hadamard_amax<float>, &hadamard_amax<Bf16>, &hadamard_amax<Fp16>},
};

}  // namespace transformer_engine::cpu::TE_ISA
