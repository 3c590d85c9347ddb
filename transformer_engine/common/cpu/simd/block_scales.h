// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scales of the blocks of a band (a tile of one block's height) from their amax: the vector form of
// current_scaling_scale and e8m0_from_amax in numerics/scale.h, bit for bit, for an amax that is
// not NaN.
#pragma once

#include "cpu/block_kernels.h"
#include "cpu/simd/fp8.h"
#include "cpu/simd/rows.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
TE_INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

TE_INLINE Vf set1_bits(uint32_t bits) { return as_float(set1_int(static_cast<int32_t>(bits))); }
TE_INLINE void store_bytes(uint8_t* p, Vi lanes, AllLanes) { store_bytes(p, lanes); }

TE_INLINE Vf current_scaling_scale(Vf amax, const BlockScaleRule& rule) {
  const Vf infinity = set1_bits(numerics::kFloatExponentBits);
  const Vf raised = max(amax, set1(rule.epsilon));
  const Vf quotient = set1(rule.fp8_max) / raised;
  Vf scale = select(less(quotient, infinity), quotient, set1(rule.largest));
  if (rule.is_power_of_two) {
    scale = as_float(as_int(scale) & set1_int(static_cast<int32_t>(~numerics::kFloatMantissaBits)));
  }
  return select(less(zero(), raised) & less(raised, infinity), scale, set1(1.0F));
}

struct E8M0Scale {
  Vi code;
  Vf scale;  // 2^(127 - code); 1 for a block of zeros, which every scale serves
};

TE_INLINE E8M0Scale e8m0_from_amax(Vf amax, float fp8_max) {
  const Vf smallest = set1(0x1p-127F);
  // Infinity becomes 2^127, code 254.
  const Vf value = min(amax * set1(1.0F / fp8_max), set1(0x1p127F));
  // A mantissa that is not 0 carries into the exponent.
  const Vi up = shift_right_logical<numerics::kFloatMantissaWidth>(
      as_int(value) + set1_int(static_cast<int32_t>(numerics::kFloatMantissaBits)));
  const Vi code = select_int(less(smallest, value), up, set1_int(0));
  const Vi exponent = set1_int(numerics::kE8M0Max) - code;
  const Vf normal = as_float(shift_left<numerics::kFloatMantissaWidth>(exponent));
  // Code 254 asks for 2^-127, an FP32 denormal.
  const Vf scale = select(less(zero(), normal), normal, smallest);
  return {code, select(less(zero(), amax), scale, set1(1.0F))};
}

// Of each block of both copies, first the amax, then the scale.
template <int kBlock>
struct BandScales {
  static constexpr int64_t kMaxCols = tile_limits(kBlock).cols;
  static constexpr int64_t kMaxRowBlocks = kMaxCols / kBlock * kBlock;

  alignas(64) float rows[kMaxRowBlocks];  // row by row
  alignas(64) float columns[kMaxCols];
};

TE_INLINE int64_t blocks_per_row(const BlockTile& band) {
  return ceil_divide(band.cols, band.block);
}

// Writes what is stored of a copy's scales: values of `blocks` blocks of each line.
template <typename T>
void write_scales(const BlockCopyTile& copy, const T* values, int64_t lines, int64_t blocks) {
  T* scales = static_cast<T*>(copy.scales);
  const int64_t step = copy.lines_per_scale;
  if (copy.block_stride == 1) {
    for (int64_t line = 0; line < lines; line += step) {
      for (int64_t block = 0; block < blocks; ++block) {
        scales[block] = values[line * blocks + block];
      }
      scales += copy.line_stride;
    }
    return;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t line = 0, i = 0; line < lines; line += step, i += copy.line_stride) {
      scales[i] = values[line * blocks + block];
    }
    scales += copy.block_stride;
  }
}

// Turns amaxes into scales, in place, and writes what is stored of them.
template <int kMaxCount>
void resolve_scales(const BlockCopyTile& copy, float* values, int64_t lines, int64_t blocks) {
  const BlockScaleRule rule = copy.rule;
  const int64_t count = lines * blocks;
  if (rule.is_e8m0) {
    alignas(64) uint8_t codes[kMaxCount];
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      const E8M0Scale e8m0 = e8m0_from_amax(load(values + i, lanes), rule.fp8_max);
      store(values + i, e8m0.scale, lanes);
      store_bytes(codes + i, e8m0.code, lanes);
    });
    write_scales(copy, codes, lines, blocks);
  } else {
    alignas(64) float inverse[kMaxCount];
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      const Vf scale = current_scaling_scale(load(values + i, lanes), rule);
      store(values + i, scale, lanes);
      store(inverse + i, set1(1.0F) / scale, lanes);
    });
    write_scales(copy, inverse, lines, blocks);
  }
}

// Gives blocks the amax of their square tile, where they share it.
template <int kBlock>
void share_amax(const BlockTile& band, BandScales<kBlock>& scales) {
  const int64_t blocks = blocks_per_row(band);
  alignas(64) float tiles[BandScales<kBlock>::kMaxCols / kBlock];
  for (int64_t block = 0; block < blocks; ++block) {
    float* columns = scales.columns + block * kBlock;
    const int64_t count = minimum(kBlock, band.cols - block * kBlock);
    Vf largest = zero();
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      largest = max(load(columns + i, lanes), largest);
    });
    tiles[block] = reduce_max(largest);
    if (band.columnwise.shares_amax) {
      const Vf shared = set1(tiles[block]);
      for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes)
                                   TE_INLINE_LAMBDA { store(columns + i, shared, lanes); });
    }
  }
  for (int64_t row = 0; band.rowwise.shares_amax && row < band.rows; ++row) {
    float* rows = scales.rows + row * blocks;
    for_lanes<kWidth>(blocks, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      store(rows + i, load(tiles + i, lanes), lanes);
    });
  }
}

// From amax to scale, in place; the copies' own scales are written.
template <int kBlock>
void resolve_scales(const BlockTile& band, BandScales<kBlock>& scales) {
  using Scales = BandScales<kBlock>;
  if (band.rowwise.shares_amax || band.columnwise.shares_amax) {
    share_amax(band, scales);
  }
  if (band.rowwise.codes != nullptr) {
    resolve_scales<Scales::kMaxRowBlocks>(band.rowwise, scales.rows, band.rows,
                                          blocks_per_row(band));
  }
  if (band.columnwise.codes != nullptr) {
    resolve_scales<Scales::kMaxCols>(band.columnwise, scales.columns, band.cols, 1);
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
