// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Transposes tiles of bytes: 64 rows x kTileCols, 16 columns per 128-bit lane; one lane below
// AVX-512, since 16 registers of AVX2 spill more than their width brings (two thirds of the speed).
//
// Four perfect shuffles of 16 registers with one another (byte i of register r moves to the
// address that rotating the bits of (r, i) gives) transpose a 16 x 16 matrix in each 128-bit
// lane. A register then holds columns c, c + 16, ... of 16 rows; four groups of rows are joined
// lane by lane, so that each output row gets 64 bytes, one cache line, at once.
#pragma once

#include <cstdint>

#include "cpu/simd/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kGroupRows = 16;
constexpr int kGroups = 4;
constexpr int kTileRows = kGroups * kGroupRows;

#if TE_ISA_LEVEL >= 2
constexpr int kTileCols = 64;
typedef __m512i TransposeRegister;
TE_INLINE __m512i unpack_low(__m512i a, __m512i b) { return _mm512_unpacklo_epi8(a, b); }
TE_INLINE __m512i unpack_high(__m512i a, __m512i b) { return _mm512_unpackhi_epi8(a, b); }
#else
constexpr int kTileCols = 16;
#if defined(__x86_64__)
typedef __m128i TransposeRegister;
TE_INLINE __m128i unpack_low(__m128i a, __m128i b) { return _mm_unpacklo_epi8(a, b); }
TE_INLINE __m128i unpack_high(__m128i a, __m128i b) { return _mm_unpackhi_epi8(a, b); }
#endif
#endif

#if defined(__x86_64__)

template <bool kStream>
TE_INLINE void store_transposed(uint8_t* out, TransposeRegister bytes) {
  auto* address = reinterpret_cast<TransposeRegister*>(out);
#if TE_ISA_LEVEL >= 2
  kStream ? _mm512_stream_si512(address, bytes) : _mm512_storeu_si512(address, bytes);
#else
  kStream ? _mm_stream_si128(address, bytes) : _mm_storeu_si128(address, bytes);
#endif
}

// Tiles whose lanes are transposed: lane l of register i of group g of a tile holds column 16 l + i
// of the rows of that group.
typedef TransposeRegister TileGroups[kGroups][kGroupRows];

TE_INLINE void transpose_groups(const uint8_t* in, int64_t in_stride, TileGroups& groups) {
  for (int group = 0; group < kGroups; ++group) {
    TransposeRegister rows[kGroupRows];
    for (int i = 0; i < kGroupRows; ++i) {
      __builtin_memcpy(&rows[i], in + (group * kGroupRows + i) * in_stride, sizeof(rows[i]));
    }
    for (int stage = 0; stage < 4; ++stage) {
      TransposeRegister shuffled[kGroupRows];
      for (int i = 0; i < kGroupRows / 2; ++i) {
        shuffled[2 * i] = unpack_low(rows[i], rows[i + kGroupRows / 2]);
        shuffled[2 * i + 1] = unpack_high(rows[i], rows[i + kGroupRows / 2]);
      }
      __builtin_memcpy(rows, shuffled, sizeof(rows));
    }
    __builtin_memcpy(groups[group], rows, sizeof(rows));
  }
}

// Stores output rows i, i + 16, ... of tiles below one another, each row at once.
template <bool kStream, int kTiles>
TE_INLINE void store_lanes(const TileGroups (&tiles)[kTiles], int i, uint8_t* out, int64_t stride) {
#if TE_ISA_LEVEL >= 2
  TransposeRegister lanes[4][kTiles];
#pragma GCC unroll 4
  for (int tile = 0; tile < kTiles; ++tile) {
    const TileGroups& groups = tiles[tile];
    const __m512i low_01 = _mm512_shuffle_i64x2(groups[0][i], groups[1][i], 0x44);
    const __m512i high_01 = _mm512_shuffle_i64x2(groups[0][i], groups[1][i], 0xEE);
    const __m512i low_23 = _mm512_shuffle_i64x2(groups[2][i], groups[3][i], 0x44);
    const __m512i high_23 = _mm512_shuffle_i64x2(groups[2][i], groups[3][i], 0xEE);
    lanes[0][tile] = _mm512_shuffle_i64x2(low_01, low_23, 0x88);
    lanes[1][tile] = _mm512_shuffle_i64x2(low_01, low_23, 0xDD);
    lanes[2][tile] = _mm512_shuffle_i64x2(high_01, high_23, 0x88);
    lanes[3][tile] = _mm512_shuffle_i64x2(high_01, high_23, 0xDD);
  }
#pragma GCC unroll 4
  for (int lane = 0; lane < 4; ++lane) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      store_transposed<kStream>(out + (lane * 16 + i) * stride + tile * kTileRows,
                                lanes[lane][tile]);
    }
  }
#else
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int group = 0; group < kGroups; ++group) {
      store_transposed<kStream>(out + i * stride + tile * kTileRows + group * kGroupRows,
                                tiles[tile][group][i]);
    }
  }
#endif
}

// kTiles tiles below one another: output rows leave in pieces of kTiles * 64 bytes.
template <bool kStream, int kTiles>
TE_INLINE void transpose_tiles(const uint8_t* in, int64_t in_stride, uint8_t* out,
                               int64_t out_stride) {
  TileGroups tiles[kTiles];  // on the stack: more than there are registers
  for (int tile = 0; tile < kTiles; ++tile) {
    transpose_groups(in + tile * kTileRows * in_stride, in_stride, tiles[tile]);
  }
  for (int i = 0; i < kGroupRows; ++i) {
    store_lanes<kStream>(tiles, i, out, out_stride);
  }
}

#else

template <bool kStream, int kTiles>
TE_INLINE void transpose_tiles(const uint8_t* in, int64_t in_stride, uint8_t* out,
                               int64_t out_stride) {
  for (int col = 0; col < kTileCols; ++col) {
    for (int row = 0; row < kTiles * kTileRows; ++row) {
      out[col * out_stride + row] = in[row * in_stride + col];
    }
  }
}

#endif

// A part of a tile: through padded copies.
TE_INLINE void transpose_partial_tile(const uint8_t* in, int64_t in_stride, uint8_t* out,
                                      int64_t out_stride, int64_t rows, int64_t cols) {
  alignas(64) uint8_t padded_in[kTileRows][kTileCols] = {};
  alignas(64) uint8_t padded_out[kTileCols][kTileRows];
  for (int64_t row = 0; row < rows; ++row) {
    __builtin_memcpy(padded_in[row], in + row * in_stride, static_cast<uint64_t>(cols));
  }
  transpose_tiles<false, 1>(padded_in[0], kTileCols, padded_out[0], kTileRows);
  for (int64_t col = 0; col < cols; ++col) {
    __builtin_memcpy(out + col * out_stride, padded_out[col], static_cast<uint64_t>(rows));
  }
}

// Memory takes pieces of 256 bytes up to 1.7 times as fast as single lines of 64.
constexpr int kTilesAtOnce = 4;

// A matrix of any size; kStream needs output rows aligned to 64 bytes.
template <bool kStream>
TE_INLINE void transpose_matrix(const uint8_t* in, int64_t in_stride, uint8_t* out,
                                int64_t out_stride, int64_t rows, int64_t cols) {
  constexpr int64_t kRowsAtOnce = kTilesAtOnce * kTileRows;
  for (int64_t col = 0; col < cols; col += kTileCols) {
    const bool is_whole = cols - col >= kTileCols;
    const uint8_t* tile_in = in + col;
    uint8_t* tile_out = out + col * out_stride;
    int64_t row = 0;
    for (; is_whole && rows - row >= kRowsAtOnce; row += kRowsAtOnce) {
      transpose_tiles<kStream, kTilesAtOnce>(tile_in + row * in_stride, in_stride, tile_out + row,
                                             out_stride);
    }
    for (; is_whole && rows - row >= kTileRows; row += kTileRows) {
      transpose_tiles<kStream, 1>(tile_in + row * in_stride, in_stride, tile_out + row, out_stride);
    }
    for (; row < rows; row += kTileRows) {
      transpose_partial_tile(tile_in + row * in_stride, in_stride, tile_out + row, out_stride,
                             rows - row < kTileRows ? rows - row : kTileRows,
                             is_whole ? kTileCols : cols - col);
    }
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
