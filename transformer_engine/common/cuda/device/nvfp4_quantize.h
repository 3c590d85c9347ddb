// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Quantization to NVFP4: both copies of an input [M, K] in one pass.
//
// A block of 256 threads takes a tile of 64 x 128 into shared memory, once.
//   rows     each thread takes two neighbouring blocks of one row: 16 bytes of codes. The lanes of
//            a warp are 16 rows by 2 pairs, so that 16 neighbouring lanes hold the rows of a square
//            tile and stores fill sectors of 32 bytes.
//   columns  each thread takes 16 rows of two neighbouring columns, transforms them where asked,
//            and leaves the codes in shared memory, from where they are written along the rows of
//            the transposed copy. 8 neighbouring lanes hold a square tile.
// Reads 2 (4) bytes per element of BF16 or FP16 (FP32); writes 9/16 byte per element and copy.
#pragma once

#include "cuda/device/nvfp4_tile.h"
#include "numerics/hadamard.h"

namespace transformer_engine::cuda::nvfp4 {

struct Options {
  BlockRule rule;
  bool has_hadamard;
  uint16_t hadamard_signs;
  numerics::PhiloxKey key;
  const uint64_t* seed;  // [1], in place of the key, or null
  const float* noop;     // [1] or null

  __device__ __forceinline__ numerics::PhiloxKey key_now() const {
    return seed != nullptr ? numerics::philox_key(*seed) : key;
  }
};

constexpr int kCodeWords = kRowGroups * 2;

template <class T>
struct alignas(16) Shared {
  Tile<T> tile;
  // Codes and scales of the columns. Two words beyond the codes: of 16 lanes that write 8 bytes
  // each to every second column, two meet in a bank instead of eight.
  uint32_t codes[kTileCols][kCodeWords + 2];
  uint8_t scales[kTileCols][kRowGroups];
  // Four over six with square tiles: the scale that a tile takes in the columnwise copy. The choice
  // is made in the phase of rows, as errors are summed along them.
  uint8_t tile_scales[kRowGroups][kColBlocks];
};

// A tile of the input: its first element.
struct Corner {
  int64_t row, col;
};

template <Mode kMode, class T>
__device__ __forceinline__ void quantize_rows(Shared<T>& shared, const Corner corner,
                                              const Output& rowwise, const Output& columnwise,
                                              const Options& options) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row_group = warp / 2;
  const int tile_row = row_group * kBlock + lane % kBlock;
  const int first = (warp % 2 * 2 + lane / kBlock) * 2;  // block of the tile's row
  const int64_t row = corner.row + tile_row;
  const bool is_inside = row < rowwise.rows && corner.col / kBlock + first < rowwise.blocks;
  const bool decides_columnwise =
      kMode == Mode::kFourOverSix && options.rule.has_square_tiles && columnwise.data != nullptr;
  const bool is_wanted = rowwise.data != nullptr;
  if (!is_wanted && !decides_columnwise) {
    return;
  }
  numerics::Nvfp4Scale tensor{};
  if (is_wanted) {  // rows beyond the last take the numbers of the last
    tensor = rowwise.tensor_scale(row < rowwise.rows ? row : rowwise.rows - 1);
  }
  const numerics::PhiloxKey key = options.key_now();
  Codes codes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float values[kBlock];
    read_row_block<T>(shared.tile, tile_row, first + i, values);
    float amax = amax_of(values);
    if (options.rule.has_square_tiles) {
      amax = warp_reduce<Max, kBlock>(amax);
    }
    const int64_t block = corner.col / kBlock + first + i;
    const RandomPlace place{row, block * kBlock, false, key};
    if (decides_columnwise) {
      const auto chosen =
          quantize_block<kMode>(values, amax, columnwise.tensor_scale(0), options.rule, place);
      if (lane % kBlock == 0) {
        shared.tile_scales[row_group][first + i] = chosen.scale;
      }
    }
    if (is_wanted) {
      const auto quantized = quantize_block<kMode>(values, amax, tensor, options.rule, place);
      codes[i] = quantized.codes;
      if (is_inside && block < rowwise.blocks) {
        rowwise.store_scale(row, block, quantized.scale);
      }
    }
  }
  if (is_wanted && is_inside) {
    rowwise.store_codes(row, corner.col / kBlock + first, codes);
  }
}

template <Mode kMode, class T>
__device__ __forceinline__ void quantize_columns(Shared<T>& shared, const Corner corner,
                                                 const Output& columnwise, const Options& options) {
  constexpr int kPairs = kTileCols / 2;
  const int row_group = static_cast<int>(threadIdx.x) / kPairs;
  const int tile_col = static_cast<int>(threadIdx.x) % kPairs * 2;
  const numerics::Nvfp4Scale tensor = columnwise.tensor_scale(0);
  const numerics::PhiloxKey key = options.key_now();
  float values[2][kBlock];
  read_column_pair<T>(shared.tile, row_group, tile_col, values);
  float amax[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (options.has_hadamard) {
      numerics::random_hadamard(values[i], options.hadamard_signs);
    }
    amax[i] = amax_of(values[i]);
  }
  if (options.rule.has_square_tiles) {
    amax[0] = amax[1] = warp_reduce<Max, kBlock / 2>(max_skip_nan(amax[0], amax[1]));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const RandomPlace place{corner.col + tile_col + i, corner.row + row_group * kBlock, true, key};
    QuantizedBlock quantized;
    if (kMode == Mode::kFourOverSix && options.rule.has_square_tiles) {
      quantized.scale = shared.tile_scales[row_group][tile_col / kBlock];
      quantized.codes = encode_block<kMode>(values[i], quantized.scale, tensor, place);
    } else {
      quantized = quantize_block<kMode>(values[i], amax[i], tensor, options.rule, place);
    }
    Vec<uint32_t, 2>{{quantized.codes.word[0], quantized.codes.word[1]}}.store(
        &shared.codes[tile_col + i][row_group * 2]);
    shared.scales[tile_col + i][row_group] = quantized.scale;
  }
}

// From shared memory: each thread 16 bytes of codes, and up to two scales.
template <class T>
__device__ __forceinline__ void write_columns(const Shared<T>& shared, const Corner corner,
                                              const Output& columnwise) {
  const int64_t block0 = corner.row / kBlock;
  const int half = static_cast<int>(threadIdx.x) % 2;
  const int tile_col = static_cast<int>(threadIdx.x) / 2;
  if (corner.col + tile_col < columnwise.rows && block0 + half * 2 < columnwise.blocks) {
    Codes codes[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto words = Vec<uint32_t, 2>::load(&shared.codes[tile_col][(half * 2 + i) * 2]);
      codes[i] = {{words.v[0], words.v[1]}};
    }
    columnwise.store_codes(corner.col + tile_col, block0 + half * 2, codes);
  }
#pragma unroll
  for (int i = 0; i < kTileCols * kRowGroups; i += kThreads) {
    const int index = i + static_cast<int>(threadIdx.x);
    const int col = index / kRowGroups;
    const int group = index % kRowGroups;
    if (corner.col + col < columnwise.rows && block0 + group < columnwise.blocks) {
      columnwise.store_scale(corner.col + col, block0 + group, shared.scales[col][group]);
    }
  }
}

// `tile_columns` tiles lie side by side; block b has tile (b / tile_columns, b % tile_columns).
template <class T, Mode kMode>
__global__ void __launch_bounds__(kThreads)
    nvfp4_quantize(const TileSource<T> source, const Output rowwise, const Output columnwise,
                   const Options options, const int tile_columns) {
  __shared__ Shared<T> shared;
  if (options.noop != nullptr && *options.noop != 0.0F) {
    return;
  }
  const int block = static_cast<int>(blockIdx.x);
  const Corner corner{static_cast<int64_t>(block / tile_columns) * kTileRows,
                      static_cast<int64_t>(block % tile_columns) * kTileCols};
  load_tile<T>(shared.tile, source, corner.row, corner.col);
  __syncthreads();
  quantize_rows<kMode>(shared, corner, rowwise, columnwise, options);
  if (columnwise.data == nullptr) {
    return;
  }
  if (kMode == Mode::kFourOverSix && options.rule.has_square_tiles) {
    __syncthreads();
  }
  quantize_columns<kMode>(shared, corner, columnwise, options);
  __syncthreads();
  write_columns(shared, corner, columnwise);
}

}  // namespace transformer_engine::cuda::nvfp4
