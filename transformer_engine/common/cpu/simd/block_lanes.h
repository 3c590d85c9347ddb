// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Block scaling of a band in FP32 lanes: any input, any scale.
#pragma once

#include "cpu/simd/block_scales.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// NaN is skipped.
template <typename T, int kBlock>
void collect_amax(const BlockTile& band, BandScales<kBlock>& scales) {
  __builtin_memset(scales.columns, 0, static_cast<uint64_t>(band.cols) * sizeof(float));
  for (int64_t row = 0; row < band.rows; ++row) {
    for (int64_t col = 0; col < band.cols; col += kBlock) {
      const T* in = static_cast<const T*>(band.input) + row * band.input_stride + col;
      float* columns = scales.columns + col;
      Vf amax = zero();
      for_lanes<kWidth>(minimum(kBlock, band.cols - col),
                        [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
                          const Vf x = load(in + i, lanes);
                          amax = max_abs(x, amax);
                          store(columns + i, max_abs(x, load(columns + i, lanes)), lanes);
                        });
      scales.rows[row * blocks_per_row(band) + col / kBlock] = reduce_max(amax);
    }
  }
}

template <typename T, typename Format, int kBlock>
void encode_rowwise(const BlockTile& band, const BandScales<kBlock>& scales) {
  for (int64_t row = 0; row < band.rows; ++row) {
    for (int64_t col = 0; col < band.cols; col += kBlock) {
      const T* in = static_cast<const T*>(band.input) + row * band.input_stride + col;
      uint8_t* out = band.rowwise.codes + row * band.rowwise.codes_stride + col;
      const Vf scale = set1(scales.rows[row * blocks_per_row(band) + col / kBlock]);
      for_lanes<kWidth>(
          minimum(kBlock, band.cols - col), [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
            store_bytes(out + i, encode_lanes<Format>(load(in + i, lanes) * scale), lanes);
          });
    }
  }
}

// Into `codes`, not transposed.
template <typename T, typename Format, int kBlock>
void encode_columnwise(const BlockTile& band, const BandScales<kBlock>& scales, uint8_t* codes,
                       int64_t codes_stride) {
  for (int64_t row = 0; row < band.rows; ++row) {
    const T* in = static_cast<const T*>(band.input) + row * band.input_stride;
    uint8_t* out = codes + row * codes_stride;
    for_lanes<kWidth>(band.cols, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      const Vf scaled = load(in + i, lanes) * load(scales.columns + i, lanes);
      store_bytes(out + i, encode_lanes<Format>(scaled), lanes);
    });
  }
}

template <typename T, typename Format, int kBlock>
void quantize_lanes(const BlockTile& band, uint8_t* column_codes, int64_t column_codes_stride) {
  BandScales<kBlock> scales;
  collect_amax<T, kBlock>(band, scales);
  resolve_scales<kBlock>(band, scales);
  if (band.rowwise.codes != nullptr) {
    encode_rowwise<T, Format, kBlock>(band, scales);
  }
  if (band.columnwise.codes != nullptr) {
    encode_columnwise<T, Format, kBlock>(band, scales, column_codes, column_codes_stride);
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
