// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tiles of the input of NVFP4 in shared memory, and codes on their way to memory.
#pragma once

#include "cuda/device/nvfp4_block.h"
#include "cuda/device/ptx.h"
#include "cuda/device/vector.h"

namespace transformer_engine::cuda::nvfp4 {

constexpr int kThreads = 256;
// A row of the tile is 256 or 512 bytes of input and 64 of codes, a column of it 32 bytes of codes:
// whole sectors of memory. Both phases give each thread 32 elements.
constexpr int kTileRows = 64;
constexpr int kTileCols = 128;
constexpr int kRowGroups = kTileRows / kBlock;  // blocks of a column
constexpr int kColBlocks = kTileCols / kBlock;  // blocks of a row
// 16 bytes beyond a multiple of all banks: eight lanes that read 16 bytes each, one below the
// other, meet no bank twice.
template <class T>
constexpr int kPitch = kTileCols + kVectorSize<T>;
template <class T>
using Tile = T[kTileRows][kPitch<T>];

// A part of the input: rows and columns beyond its end are read as 0.
template <class T>
struct TileSource {
  const T* data;  // [rows, cols]
  int64_t rows, cols;
  bool is_aligned;  // rows allow vectors
};

// All threads of the block; followed by a barrier.
template <class T>
__device__ __forceinline__ void load_tile(Tile<T>& tile, const TileSource<T>& source, int64_t row0,
                                          int64_t col0) {
  if (source.is_aligned) {
    constexpr int kVectors = kTileCols / kVectorSize<T>;
#pragma unroll
    for (int i = 0; i < kTileRows * kVectors; i += kThreads) {
      const int index = i + static_cast<int>(threadIdx.x);
      const int row = index / kVectors;
      const int col = index % kVectors * kVectorSize<T>;
      if (row0 + row < source.rows && col0 + col < source.cols) {
        ptx::cp_async16(&tile[row][col], source.data + (row0 + row) * source.cols + col0 + col);
      } else {
        Vec<T, kVectorSize<T>>{}.store(&tile[row][col]);
      }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    return;
  }
  constexpr int kRowsAtOnce = kThreads / kTileCols;
  const int col = static_cast<int>(threadIdx.x) % kTileCols;
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / kTileCols; row < kTileRows; row += kRowsAtOnce) {
    const bool is_inside = row0 + row < source.rows && col0 + col < source.cols;
    tile[row][col] =
        is_inside ? source.data[(row0 + row) * source.cols + col0 + col] : from_float<T>(0.0F);
  }
}

template <class T>
__device__ __forceinline__ void read_row_block(const Tile<T>& tile, int row, int block,
                                               float (&values)[kBlock]) {
#pragma unroll
  for (int i = 0; i < kBlock; i += kVectorSize<T>) {
    const auto vector = Vec<T, kVectorSize<T>>::load(&tile[row][block * kBlock + i]);
#pragma unroll
    for (int j = 0; j < kVectorSize<T>; ++j) {
      values[i + j] = to_float(vector.v[j]);
    }
  }
}

// The 16 elements of a group of rows in columns `col` and `col` + 1.
template <class T>
__device__ __forceinline__ void read_column_pair(const Tile<T>& tile, int row_group, int col,
                                                 float (&values)[2][kBlock]) {
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const auto pair = Vec<T, 2>::load(&tile[row_group * kBlock + i][col]);
    values[0][i] = to_float(pair.v[0]);
    values[1][i] = to_float(pair.v[1]);
  }
}

// One copy, as stored.
struct Output {
  uint8_t* data;  // [rows, blocks] of 8 bytes, or null
  uint8_t* scales;
  int64_t row_stride, col_stride;  // of scales
  const float* amax;               // [1], or [rows] with is_row_scaled
  float e4m3_max;
  bool is_row_scaled;
  int64_t rows, blocks;
  int alignment;  // that two neighbouring blocks of codes from an even one always have: 16, 8 or 1

  __device__ __forceinline__ numerics::Nvfp4Scale tensor_scale(int64_t row) const {
    return numerics::nvfp4_scale(amax[is_row_scaled ? row : 0], e4m3_max);
  }
  __device__ __forceinline__ void store_scale(int64_t row, int64_t block, uint8_t scale) const {
    scales[row * row_stride + block * col_stride] = scale;
  }
  // Blocks `block` (even) and `block` + 1 of a row, the second where the row has it.
  __device__ __forceinline__ void store_codes(int64_t row, int64_t block,
                                              const Codes (&codes)[2]) const {
    uint8_t* target = data + (row * blocks + block) * static_cast<int64_t>(sizeof(Codes));
    const bool has_both = block + 1 < blocks;
    if (alignment == 16 && has_both) {
      const Vec<uint32_t, 4> words{
          {codes[0].word[0], codes[0].word[1], codes[1].word[0], codes[1].word[1]}};
      words.store(reinterpret_cast<uint32_t*>(target));
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 0 || has_both) {
        store_one(target + i * static_cast<int>(sizeof(Codes)), codes[i]);
      }
    }
  }

 private:
  __device__ __forceinline__ void store_one(uint8_t* target, const Codes& codes) const {
    if (alignment >= 8) {
      Vec<uint32_t, 2>{{codes.word[0], codes.word[1]}}.store(reinterpret_cast<uint32_t*>(target));
      return;
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Codes)); ++i) {
      target[i] = static_cast<uint8_t>(codes.word[i / 4] >> (i % 4 * 8));
    }
  }
};

}  // namespace transformer_engine::cuda::nvfp4
