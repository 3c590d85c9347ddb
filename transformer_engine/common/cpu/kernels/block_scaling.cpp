// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Quantization of a tile with one scale per block, for one thread and one instruction set (table:
// cpu/block_kernels.h). Per block: amax = max |x|, its scale, q = FP8(x * scale).
//
// A tile is done band by band, a block high each: the input is read from memory for the amaxes and
// a second time, out of the cache, for the codes. Columnwise codes that are stored transposed are
// collected over the bands first, so that they leave in long pieces.
//
// Bytes from memory: 2 or 4 read, 1 written per copy and element, and the scales.
#include "cpu/block_kernels.h"
#include "cpu/simd/block_lanes.h"
#include "cpu/simd/block_registers.h"
#include "cpu/simd/stores.h"
#include "cpu/simd/transpose.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

using numerics::E4M3;
using numerics::E5M2;

// Rows [first, first + kBlock) of a tile, what there is of them.
template <int kBlock>
BlockTile band_of(const BlockTile& tile, int64_t first, int64_t element_bytes) {
  BlockTile band = tile;
  band.input = static_cast<const char*>(tile.input) + first * tile.input_stride * element_bytes;
  band.rows = minimum(kBlock, tile.rows - first);
  const auto move = [](BlockCopyTile& copy, int64_t codes, int64_t scales) {
    if (copy.codes != nullptr) {
      copy.codes += codes;
      copy.scales = copy.rule.is_e8m0
                        ? static_cast<void*>(static_cast<uint8_t*>(copy.scales) + scales)
                        : static_cast<float*>(copy.scales) + scales;
    }
  };
  move(band.rowwise, first * tile.rowwise.codes_stride,
       first / tile.rowwise.lines_per_scale * tile.rowwise.line_stride);
  move(band.columnwise, 0, first / kBlock * tile.columnwise.block_stride);
  return band;
}

template <typename T, typename Format, int kBlock>
void quantize_band(const BlockTile& band, uint8_t* column_codes, int64_t column_codes_stride) {
#if TE_ISA_LEVEL >= 1
  if constexpr (__is_same(T, Bf16)) {
    if (quantize_registers<Format, kBlock>(band, column_codes, column_codes_stride)) {
      return;
    }
  }
#endif
  quantize_lanes<T, Format, kBlock>(band, column_codes, column_codes_stride);
}

template <typename T, typename Format>
void quantize_fp8_blocks(const BlockTile& tile) {
  constexpr int kBlock = 128;
  constexpr TileLimits kLimits = tile_limits(kBlock);
  // A line more per row: rows a power of two apart would share cache sets.
  constexpr int64_t kStride = kLimits.cols + kLineBytes;
  alignas(64) uint8_t codes[kLimits.rows * kStride];
  for (int64_t row = 0; row < tile.rows; row += kBlock) {
    quantize_band<T, Format, kBlock>(band_of<kBlock>(tile, row, sizeof(T)), codes + row * kStride,
                                     kStride);
  }
  const BlockCopyTile& copy = tile.columnwise;
  if (copy.codes == nullptr) {
    return;
  }
  if (tile.stream && is_line_aligned(copy.codes, copy.codes_stride, tile.cols)) {
    transpose_matrix<true>(codes, kStride, copy.codes, copy.codes_stride, tile.rows, tile.cols);
  } else {
    transpose_matrix<false>(codes, kStride, copy.codes, copy.codes_stride, tile.rows, tile.cols);
  }
}

template <typename T, typename Format>
void quantize(const BlockTile& tile) {
  if (tile.block == 32) {
    quantize_band<T, Format, 32>(tile, tile.columnwise.codes, tile.columnwise.codes_stride);
  } else {
    quantize_fp8_blocks<T, Format>(tile);
  }
  if (tile.stream) {
    finish_stores<true>();
  }
}

}  // namespace

const BlockQuantizeKernels block_quantize_kernels = {
    .run = {{&quantize<float, E4M3>, &quantize<float, E5M2>},
            {&quantize<Bf16, E4M3>, &quantize<Bf16, E5M2>},
            {&quantize<Fp16, E4M3>, &quantize<Fp16, E5M2>}},
};

}  // namespace transformer_engine::cpu::TE_ISA
