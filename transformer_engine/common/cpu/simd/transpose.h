// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Transposes square tiles of bytes: kTransposeTile x kTransposeTile, 16 per 128-bit lane.
//
// Four perfect shuffles of 16 registers with one another (byte i of register r moves to the
// address that rotating the bits of (r, i) gives) transpose a 16 x 16 matrix in each 128-bit
// lane. A register then holds columns c, c + 16, ... of 16 rows; groups of rows are joined by
// transposing whole lanes, so that each output row is stored by one full-width store.
#pragma once

#include <cstdint>

#include "cpu/simd/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

#if TE_ISA_LEVEL >= 2
constexpr int kTransposeTile = 64;
typedef __m512i TransposeRegister;
TE_INLINE __m512i unpack_low(__m512i a, __m512i b) { return _mm512_unpacklo_epi8(a, b); }
TE_INLINE __m512i unpack_high(__m512i a, __m512i b) { return _mm512_unpackhi_epi8(a, b); }
#elif TE_ISA_LEVEL == 1
constexpr int kTransposeTile = 32;
typedef __m256i TransposeRegister;
TE_INLINE __m256i unpack_low(__m256i a, __m256i b) { return _mm256_unpacklo_epi8(a, b); }
TE_INLINE __m256i unpack_high(__m256i a, __m256i b) { return _mm256_unpackhi_epi8(a, b); }
#elif defined(__x86_64__)
constexpr int kTransposeTile = 16;
typedef __m128i TransposeRegister;
TE_INLINE __m128i unpack_low(__m128i a, __m128i b) { return _mm_unpacklo_epi8(a, b); }
TE_INLINE __m128i unpack_high(__m128i a, __m128i b) { return _mm_unpackhi_epi8(a, b); }
#else
constexpr int kTransposeTile = 16;
#endif

#if defined(__x86_64__)

// rows[i] = row i of a 16 x kTransposeTile matrix; becomes columns as described above.
TE_INLINE void transpose_lanes(TransposeRegister (&rows)[16]) {
  for (int stage = 0; stage < 4; ++stage) {
    TransposeRegister shuffled[16];
    for (int i = 0; i < 8; ++i) {
      shuffled[2 * i] = unpack_low(rows[i], rows[i + 8]);
      shuffled[2 * i + 1] = unpack_high(rows[i], rows[i + 8]);
    }
    for (int i = 0; i < 16; ++i) {
      rows[i] = shuffled[i];
    }
  }
}

TE_INLINE void load_and_transpose_lanes(const uint8_t* in, int64_t stride,
                                        TransposeRegister (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(&rows[i], in + i * stride, sizeof(rows[i]));
  }
  transpose_lanes(rows);
}

#endif

#if TE_ISA_LEVEL >= 2

template <bool kStream>
TE_INLINE void transpose_tile(const uint8_t* in, int64_t in_stride, uint8_t* out,
                              int64_t out_stride) {
  __m512i groups[4][16];  // 16 rows each; on the stack, since 64 registers do not exist
  for (int group = 0; group < 4; ++group) {
    __m512i rows[16];
    load_and_transpose_lanes(in + group * 16 * in_stride, in_stride, rows);
    for (int i = 0; i < 16; ++i) {
      groups[group][i] = rows[i];
    }
  }
  const auto put = [&](int col, __m512i bytes) {
    auto* address = reinterpret_cast<__m512i*>(out + col * out_stride);
    if constexpr (kStream) {
      _mm512_stream_si512(address, bytes);
    } else {
      _mm512_storeu_si512(address, bytes);
    }
  };
  for (int i = 0; i < 16; ++i) {
    // Lane l of group g holds column 16 l + i of rows 16 g...: transpose the 4 x 4 lanes.
    const __m512i low_01 = _mm512_shuffle_i64x2(groups[0][i], groups[1][i], 0x44);
    const __m512i high_01 = _mm512_shuffle_i64x2(groups[0][i], groups[1][i], 0xEE);
    const __m512i low_23 = _mm512_shuffle_i64x2(groups[2][i], groups[3][i], 0x44);
    const __m512i high_23 = _mm512_shuffle_i64x2(groups[2][i], groups[3][i], 0xEE);
    put(i, _mm512_shuffle_i64x2(low_01, low_23, 0x88));
    put(i + 16, _mm512_shuffle_i64x2(low_01, low_23, 0xDD));
    put(i + 32, _mm512_shuffle_i64x2(high_01, high_23, 0x88));
    put(i + 48, _mm512_shuffle_i64x2(high_01, high_23, 0xDD));
  }
}

#elif TE_ISA_LEVEL == 1

template <bool kStream>
TE_INLINE void transpose_tile(const uint8_t* in, int64_t in_stride, uint8_t* out,
                              int64_t out_stride) {
  __m256i upper[16];
  __m256i lower[16];
  load_and_transpose_lanes(in, in_stride, upper);
  load_and_transpose_lanes(in + 16 * in_stride, in_stride, lower);
  for (int i = 0; i < 16; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * out_stride),
                        _mm256_permute2x128_si256(upper[i], lower[i], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (i + 16) * out_stride),
                        _mm256_permute2x128_si256(upper[i], lower[i], 0x31));
  }
}

#elif defined(__x86_64__)

template <bool kStream>
TE_INLINE void transpose_tile(const uint8_t* in, int64_t in_stride, uint8_t* out,
                              int64_t out_stride) {
  __m128i rows[16];
  load_and_transpose_lanes(in, in_stride, rows);
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(out + i * out_stride, &rows[i], sizeof(rows[i]));
  }
}

#else

template <bool kStream>
TE_INLINE void transpose_tile(const uint8_t* in, int64_t in_stride, uint8_t* out,
                              int64_t out_stride) {
  for (int row = 0; row < kTransposeTile; ++row) {
    for (int col = 0; col < kTransposeTile; ++col) {
      out[col * out_stride + row] = in[row * in_stride + col];
    }
  }
}

#endif

// A tile of rows x cols, both at most kTransposeTile: through padded copies.
TE_INLINE void transpose_partial_tile(const uint8_t* in, int64_t in_stride, uint8_t* out,
                                      int64_t out_stride, int64_t rows, int64_t cols) {
  alignas(64) uint8_t padded_in[kTransposeTile][kTransposeTile] = {};
  alignas(64) uint8_t padded_out[kTransposeTile][kTransposeTile];
  for (int64_t row = 0; row < rows; ++row) {
    __builtin_memcpy(padded_in[row], in + row * in_stride, static_cast<uint64_t>(cols));
  }
  transpose_tile<false>(padded_in[0], kTransposeTile, padded_out[0], kTransposeTile);
  for (int64_t col = 0; col < cols; ++col) {
    __builtin_memcpy(out + col * out_stride, padded_out[col], static_cast<uint64_t>(rows));
  }
}

// A matrix of any size; `stream` needs 64-byte aligned output rows.
template <bool kStream>
TE_INLINE void transpose_matrix(const uint8_t* in, int64_t in_stride, uint8_t* out,
                                int64_t out_stride, int64_t rows, int64_t cols) {
  for (int64_t col = 0; col < cols; col += kTransposeTile) {
    const int64_t tile_cols = cols - col < kTransposeTile ? cols - col : kTransposeTile;
    for (int64_t row = 0; row < rows; row += kTransposeTile) {
      const int64_t tile_rows = rows - row < kTransposeTile ? rows - row : kTransposeTile;
      const uint8_t* tile_in = in + row * in_stride + col;
      uint8_t* tile_out = out + col * out_stride + row;
      if (tile_rows == kTransposeTile && tile_cols == kTransposeTile) {
        transpose_tile<kStream>(tile_in, in_stride, tile_out, out_stride);
      } else {
        transpose_partial_tile(tile_in, in_stride, tile_out, out_stride, tile_rows, tile_cols);
      }
    }
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
