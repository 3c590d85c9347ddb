// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Squares of the input as blocks of NVFP4 (simd/nvfp4_blocks.h): 16 rows, read once, seen along
// columns and along rows. What lies beyond the input is 0.
//
//   FloatSquare<T>  16 columns of any type, a vector of FP32 per row
//   PairSquare      2 * kWidth columns of BF16, pairs of neighbours in 32-bit lanes: half as many
//                   loads and transposes (there is none in the portable build)
//
//   load(in, stride, ahead)  of a whole square; load_square takes parts of one, too. A PairSquare
//                            asks for what lies `ahead` elements further on: sixteen rows at a
//                            time are more streams than the processor follows by itself
//   columns(g, v)            blocks along columns, in kGroups groups of kWidth
//   transpose()              after which columns() is not to be called
//   rows(g)                  blocks along rows, after transpose(): [i] is element i of each, and
//                            amax() is at least kTameLimit or NaN where one of a block is
//   column(g, lane)          = g * kColumnGroupStep + lane * kColumnLaneStep
//   row group g              block g % kBlocks of the rows g / kBlocks * kWidth and following
//   largest()                a vector whose largest lane is max |x|; NaN or at least kTameLimit in
//                            some lane where the square is not tame
//   flip_signs(signs)        of the rows where the transform has -1
//   transform_bound()        a vector none of whose lanes is smaller than what 4 times the
//                            transform makes of the lane's columns
#pragma once

#include "cpu/simd/e2m1_magnitudes.h"
#include "cpu/simd/fp8_bf16.h"
#include "cpu/simd/nvfp4_blocks.h"
#include "cpu/simd/transpose_words.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Largest magnitudes as bits: NaN and infinities are above all numbers.
TE_INLINE Vf largest_bits(const Blocks& v) {
  Vi largest[2] = {as_int(abs(v[0])), as_int(abs(v[1]))};
  TE_UNROLL
  for (int i = 2; i < kNvfp4Block; ++i) {
    largest[i % 2] = max_int(largest[i % 2], as_int(abs(v[i])));
  }
  return as_float(max_int(largest[0], largest[1]));
}

// Which rows of a square the transform negates: the bits to flip there, of `kSignBits`.
template <uint32_t kSignBits>
struct RowSigns {
  int32_t flip[kNvfp4Block];

  TE_INLINE explicit RowSigns(uint16_t signs) {
    for (int i = 0; i < kNvfp4Block; ++i) {
      flip[i] = ((signs >> i) & 1) != 0 ? static_cast<int32_t>(kSignBits) : 0;
    }
  }
};

// A sum of 16 magnitudes is more than any sum of the elements with signs, but for roundings: 15 of
// the one and 4 of the other.
constexpr float kBoundSlack = 1.0F + 0x1p-18F;

template <typename T>
struct FloatSquare {
  typedef T Element;
  typedef RowSigns<0x80000000U> Signs;
  static constexpr int kCols = kNvfp4Block;
  static constexpr int kBlocks = 1;
  static constexpr int kGroups = kNvfp4Block / kWidth;
  static constexpr int kColumnGroupStep = kWidth;
  static constexpr int kColumnLaneStep = 1;

  Blocks group[kGroups];  // lanes are columns

  TE_INLINE void load(const T* in, int64_t stride, int64_t) {
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        group[g][row] = TE_ISA::load(in + row * stride + g * kWidth);
      }
    }
  }

  TE_INLINE Vf largest() const {
    Vf result = largest_bits(group[0]);
    TE_UNROLL
    for (int g = 1; g < kGroups; ++g) {
      result = as_float(max_int(as_int(result), as_int(largest_bits(group[g]))));
    }
    return result;
  }

  TE_INLINE void flip_signs(const Signs& signs) {
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        group[g][row] = as_float(as_int(group[g][row]) ^ set1_int(signs.flip[row]));
      }
    }
  }

  TE_INLINE Vf transform_bound() const {
    Vf bound = zero();
    TE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      Vf sum = abs(group[g][0]);
      TE_UNROLL
      for (int row = 1; row < kNvfp4Block; ++row) {
        sum += abs(group[g][row]);
      }
      bound = max(sum, bound);
    }
    return bound * set1(kBoundSlack);
  }

  TE_INLINE void columns(int g, Blocks& v) const {
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      v[row] = group[g][row];
    }
  }

  TE_INLINE void transpose() {
    Blocks transposed[kGroups];
    TE_UNROLL
    for (int from = 0; from < kGroups; ++from) {
      TE_UNROLL
      for (int to = 0; to < kGroups; ++to) {
        Vf part[kWidth];
        TE_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          part[i] = group[from][to * kWidth + i];
        }
        TE_ISA::transpose(part);
        TE_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          transposed[to][from * kWidth + i] = part[i];
        }
      }
    }
    TE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      TE_UNROLL
      for (int i = 0; i < kNvfp4Block; ++i) {
        group[g][i] = transposed[g][i];
      }
    }
  }

  struct Rows {
    const Blocks& v;
    TE_INLINE Vf operator[](int i) const { return v[i]; }
    TE_INLINE Vf amax() const { return largest_bits(v); }
#if TE_ISA_LEVEL >= 3
    TE_INLINE Vf magnitude(int i) const { return abs(v[i]); }
    TE_INLINE Vi signs() const { return collect_signs(v); }
#endif
  };
  TE_INLINE Rows rows(int g) const { return {group[g]}; }
};

#if TE_ISA_LEVEL >= 1

TE_INLINE Vf even_elements(Register pairs) { return as_float(shift_left<16>(Vi{pairs})); }
TE_INLINE Vf odd_elements(Register pairs) {
  return as_float(Vi{pairs} & set1_int(static_cast<int32_t>(0xFFFF0000U)));
}
// The larger one of each pair, as FP32.
TE_INLINE Vf larger_of_pairs(Magnitudes largest) {
  return as_float(max_int(as_int(even_elements(largest.v)), as_int(odd_elements(largest.v))));
}

// Hides what `p` is, so that its contents are read from memory once more rather than kept in
// registers that are then spilled.
template <typename T>
TE_INLINE const T* read_again(const T* p) {
  __asm__("" : "+r"(p));
  return p;
}

struct PairSquare {
  typedef Bf16 Element;
  typedef RowSigns<0x80008000U> Signs;
  static constexpr int kCols = 2 * kWidth;
  static constexpr int kBlocks = kCols / kNvfp4Block;
  static constexpr int kGroups = 2;
  static constexpr int kColumnGroupStep = 1;
  static constexpr int kColumnLaneStep = 2;

  Register pairs[kNvfp4Block];  // of each row

  TE_INLINE void load(const Bf16* in, int64_t stride, int64_t ahead) {
    constexpr int kToSecondCache = 2;
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      pairs[row] = load_register(in + row * stride);
      __builtin_prefetch(in + row * stride + ahead, 0, kToSecondCache);
    }
  }

  TE_INLINE Vf largest() const { return largest_of<kNvfp4Block>(pairs); }

  TE_INLINE void flip_signs(const Signs& signs) {
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      pairs[row] = (Vi{pairs[row]} ^ set1_int(signs.flip[row])).v;
    }
  }

  // The odd elements keep the even ones below their last bits: it makes them larger.
  TE_INLINE Vf transform_bound() const {
    Vf sums[2] = {zero(), zero()};
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      const Vi magnitudes = Vi{pairs[row]} & set1_int(0x7FFF7FFF);
      sums[0] += even_elements(magnitudes.v);
      sums[1] += as_float(magnitudes);
    }
    return max(sums[0], sums[1]) * set1(kBoundSlack);
  }

  TE_INLINE void columns(int g, Blocks& v) const {
    TE_UNROLL
    for (int row = 0; row < kNvfp4Block; ++row) {
      v[row] = g == 0 ? even_elements(pairs[row]) : odd_elements(pairs[row]);
    }
  }

  // A group has 8 vectors of pairs: kWidth rows of a block.
  TE_INLINE void transpose() {
    TE_UNROLL
    for (int part = 0; part < kNvfp4Block / kWidth; ++part) {
      Vf words[kWidth];
      TE_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        words[i] = as_float(Vi{pairs[part * kWidth + i]});
      }
      TE_ISA::transpose(words);
      TE_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        pairs[part * kWidth + i] = as_int(words[i]).v;
      }
    }
  }

  static constexpr int kBlockPairs = kNvfp4Block / 2;
  struct Rows {
    const Register* pairs;
    TE_INLINE Vf operator[](int i) const {
      return i % 2 == 0 ? even_elements(pairs[i / 2]) : odd_elements(pairs[i / 2]);
    }
    TE_INLINE Vf amax() const { return largest_of<kBlockPairs>(pairs); }
#if TE_ISA_LEVEL >= 3
    TE_INLINE Vf magnitude(int i) const {
      const Vi without_sign = Vi{pairs[i / 2]} & set1_int(i % 2 == 0 ? 0x7FFF7FFF : 0x7FFF0000);
      return as_float(i % 2 == 0 ? shift_left<16>(without_sign) : without_sign);
    }
    TE_INLINE Vi signs() const { return collect_signs_of_pairs(read_again(pairs)); }
#endif
  };
  TE_INLINE Rows rows(int g) const { return {pairs + g * kBlockPairs}; }

 private:
  template <int kCount>
  static TE_INLINE Vf largest_of(const Register* pairs) {
    Magnitudes largest = {};
    TE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      collect(largest, pairs[i]);
    }
    return larger_of_pairs(largest);
  }
};

#endif

// The first rows and columns of a square, the others 0.
template <typename Square>
struct PaddedSquare {
  typedef typename Square::Element Element;
  Element elements[kNvfp4Block][Square::kCols];

  [[gnu::noinline]] void copy(const Element* in, int64_t stride, int64_t rows, int64_t cols) {
    __builtin_memset(elements, 0, sizeof(elements));
    for (int64_t row = 0; row < rows; ++row) {
      __builtin_memcpy(elements[row], in + row * stride,
                       static_cast<uint64_t>(cols) * sizeof(Element));
    }
  }
};

// `rows` and `cols` of the input are left. There is one way to the loads, so that what they load
// stays in registers.
template <typename Square>
TE_INLINE void load_square(Square& square, const typename Square::Element* in, int64_t stride,
                           int64_t rows, int64_t cols, int64_t ahead) {
  PaddedSquare<Square> padded;
  if (rows < kNvfp4Block || cols < Square::kCols) {
    padded.copy(in, stride, rows, cols);
    in = padded.elements[0];
    stride = Square::kCols;
  }
  square.load(in, stride, ahead);
}

// The best square for elements of type T.
template <typename T>
struct SquareOf {
  typedef FloatSquare<T> Type;
};
#if TE_ISA_LEVEL >= 1
template <>
struct SquareOf<Bf16> {
  typedef PairSquare Type;
};
#endif

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
