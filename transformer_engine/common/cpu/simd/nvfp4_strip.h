// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Output of NVFP4 blocks (simd/nvfp4.h): kWidth rows of a copy, eight blocks or 64 bytes of codes
// in each, collected a block at a time with a lane per row, and written a row at a time.
#pragma once

#include "cpu/nvfp4_kernels.h"
#include "cpu/simd/nvfp4.h"
#include "cpu/simd/transpose_words.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kStripBlocks = 8;
constexpr int kBlockBytes = kNvfp4Block / 2;
constexpr int kStripWords = 2 * kStripBlocks;
constexpr int64_t kStripCols = kStripBlocks * kNvfp4Block;
static_assert(kNvfp4TileRows == kStripCols, "the rows of a tile fill a strip of the other copy");

struct Strip {
  alignas(64) float words[kStripWords][kWidth];  // bit patterns
  alignas(64) float scales[kStripBlocks][kWidth];

  TE_INLINE void put(int block, const PackedBlocks& packed) {
    store(words[2 * block], as_float(packed.words[0]));
    store(words[2 * block + 1], as_float(packed.words[1]));
    store(scales[block], as_float(packed.scale_code));
  }
};

// The first `blocks` blocks of the first `rows` rows.
struct StripExtent {
  int rows;
  int blocks;
};

TE_INLINE void stream_words(uint8_t* p, Vf words) {
#if TE_ISA_LEVEL >= 2
  _mm512_stream_ps(reinterpret_cast<float*>(p), words.v);
#elif TE_ISA_LEVEL == 1
  _mm256_stream_ps(reinterpret_cast<float*>(p), words.v);
#else
  store(reinterpret_cast<float*>(p), words);
#endif
}

// Orders streamed stores before what follows.
TE_INLINE void finish_streaming() {
#if TE_ISA_LEVEL >= 1
  _mm_sfence();
#endif
}

// `out` is the first row's; `stream` needs rows aligned to 64 bytes.
TE_INLINE void write_codes(const Strip& strip, const StripExtent& extent, uint8_t* out,
                           int64_t stride_bytes, bool stream) {
  constexpr int kParts = kStripWords / kWidth;
  constexpr int kPartBytes = kWidth * static_cast<int>(sizeof(float));
  Vf parts[kParts][kWidth];
  for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      parts[part][i] = load(strip.words[part * kWidth + i]);
    }
    transpose(parts[part]);
  }
  const bool is_whole = extent.blocks == kStripBlocks;
  for (int row = 0; row < extent.rows; ++row) {
    uint8_t* line = out + row * stride_bytes;
    if (is_whole) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        uint8_t* address = line + part * kPartBytes;
        stream ? stream_words(address, parts[part][row])
               : store(reinterpret_cast<float*>(address), parts[part][row]);
      }
    } else {
      float words[kStripWords];
      for (int part = 0; part < kParts; ++part) {
        store(words + part * kWidth, parts[part][row]);
      }
      __builtin_memcpy(line, words, static_cast<uint64_t>(extent.blocks * kBlockBytes));
    }
  }
}

// Four blocks' codes as one word per row.
TE_INLINE Vi join_scales(const float (*codes)[kWidth]) {
  const Vi low = as_int(load(codes[0])) | shift_left<8>(as_int(load(codes[1])));
  const Vi high = as_int(load(codes[2])) | shift_left<8>(as_int(load(codes[3])));
  return low | shift_left<16>(high);
}

TE_INLINE void write_scales(const Strip& strip, const StripExtent& extent, uint8_t* out,
                            int64_t row_stride, int64_t col_stride) {
  alignas(64) float joined[2][kWidth];
  store(joined[0], as_float(join_scales(strip.scales)));
  store(joined[1], as_float(join_scales(strip.scales + 4)));
  for (int row = 0; row < extent.rows; ++row) {
    uint8_t codes[kStripBlocks];
    __builtin_memcpy(codes, &joined[0][row], 4);
    __builtin_memcpy(codes + 4, &joined[1][row], 4);
    uint8_t* line = out + row * row_stride;
    if (col_stride == 1 && extent.blocks == kStripBlocks) {
      __builtin_memcpy(line, codes, sizeof(codes));
      continue;
    }
    for (int block = 0; block < extent.blocks; ++block) {
      line[block * col_stride] = codes[block];
    }
  }
}

// Where a strip goes in a copy: its rows are `row`, `row + row_step` and so on.
struct StripPlace {
  int64_t row;
  int64_t row_step;
  int64_t block;  // first one
};

TE_INLINE void write_strip(const Strip& strip, const Nvfp4CopyTile& copy, const StripPlace& place,
                           const StripExtent& extent, bool stream) {
  write_codes(strip, extent,
              copy.data + place.row * copy.data_stride_bytes + place.block * kBlockBytes,
              place.row_step * copy.data_stride_bytes, stream);
  write_scales(
      strip, extent,
      copy.scales + place.row * copy.scale_row_stride + place.block * copy.scale_col_stride,
      place.row_step * copy.scale_row_stride, copy.scale_col_stride);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
