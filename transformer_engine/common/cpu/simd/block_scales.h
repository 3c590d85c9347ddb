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
  static constexpr int64_t kMaxBlocks = kMaxCols / kBlock;
  // Next to each other lie what the copy's own scales have next to each other: the blocks of a row
  // (MXFP8), or the rows of a block (FP8 blocks).
  static constexpr bool kByRow = kBlock == 32;

  alignas(64) float rows[kMaxBlocks * kBlock];
  alignas(64) float columns[kMaxCols];

  static constexpr int64_t row_index(int64_t row, int64_t block) {
    return kByRow ? row * kMaxBlocks + block : block * kBlock + row;
  }
};

// Writes values 0, group, 2 * group ...
template <typename T>
TE_INLINE void write_scales(const T* values, int64_t count, int64_t group, T* scales,
                            int64_t stride) {
  if (stride == 1 && group == 1) {
    __builtin_memcpy(scales, values, static_cast<uint64_t>(count) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < count; i += group) {
    *scales = values[i];
    scales += stride;
  }
}

// Turns a run of amaxes into scales, in place, and writes what is stored of them: at number
// `first` of the copy's scales and further ones `stride` apart, for every `group`-th.
template <int kMaxCount>
void resolve_run(const BlockCopyTile& copy, float* values, int64_t count, int64_t group,
                 int64_t first, int64_t stride) {
  if (copy.rule.is_e8m0) {
    uint8_t codes[kMaxCount];
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      const E8M0Scale e8m0 = e8m0_from_amax(load(values + i, lanes), copy.rule.fp8_max);
      store(values + i, e8m0.scale, lanes);
      store_bytes(codes + i, e8m0.code, lanes);
    });
    write_scales(codes, count, group, static_cast<uint8_t*>(copy.scales) + first, stride);
  } else {
    float inverse[kMaxCount];
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      const Vf scale = current_scaling_scale(load(values + i, lanes), copy.rule);
      store(values + i, scale, lanes);
      store(inverse + i, set1(1.0F) / scale, lanes);
    });
    write_scales(inverse, count, group, static_cast<float*>(copy.scales) + first, stride);
  }
}

// Gives blocks the amax of their square tile, where they share it.
template <int kBlock>
void share_amax(const BlockTile& band, BandScales<kBlock>& scales) {
  for (int64_t col = 0; col < band.cols; col += kBlock) {
    const int64_t count = minimum(kBlock, band.cols - col);
    Vf largest = zero();
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      largest = max(load(scales.columns + col + i, lanes), largest);
    });
    const float amax = reduce_max(largest);
    for (int64_t i = 0; band.columnwise.shares_amax && i < count; ++i) {
      scales.columns[col + i] = amax;
    }
    for (int64_t row = 0; band.rowwise.shares_amax && row < band.rows; ++row) {
      scales.rows[BandScales<kBlock>::row_index(row, col / kBlock)] = amax;
    }
  }
}

// From amax to scale, in place; the copies' own scales are written.
template <int kBlock>
void resolve_scales(const BlockTile& band, BandScales<kBlock>& scales) {
  using Scales = BandScales<kBlock>;
  if (band.rowwise.shares_amax || band.columnwise.shares_amax) {
    share_amax(band, scales);
  }
  if (const BlockCopyTile& copy = band.rowwise; copy.codes != nullptr) {
    const int64_t blocks = ceil_divide(band.cols, kBlock);
    const int64_t runs = Scales::kByRow ? band.rows : blocks;
    for (int64_t i = 0; i < runs; ++i) {
      if constexpr (Scales::kByRow) {
        resolve_run<Scales::kMaxBlocks>(copy, scales.rows + Scales::row_index(i, 0), blocks, 1,
                                        i * copy.line_stride, copy.block_stride);
      } else {
        resolve_run<kBlock>(copy, scales.rows + Scales::row_index(0, i), band.rows,
                            copy.lines_per_scale, i * copy.block_stride, copy.line_stride);
      }
    }
  }
  if (const BlockCopyTile& copy = band.columnwise; copy.codes != nullptr) {
    resolve_run<Scales::kMaxCols>(copy, scales.columns, band.cols, copy.lines_per_scale, 0,
                                  copy.line_stride);
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
