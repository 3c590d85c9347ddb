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

// The lines of a strip: words[p][r] is part p of row r.
constexpr int kStripParts = kStripWords / kWidth;
constexpr int kPartBytes = kWidth * static_cast<int>(sizeof(float));
struct StripLines {
  Vf words[kStripParts][kWidth];

  TE_INLINE explicit StripLines(const Strip& strip) {
    TE_UNROLL
    for (int part = 0; part < kStripParts; ++part) {
      TE_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        words[part][i] = load(strip.words[part * kWidth + i]);
      }
      transpose(words[part]);
    }
  }
};

// All of a strip; streaming needs rows aligned to 64 bytes.
template <bool kStream>
TE_INLINE void write_whole_codes(const Strip& strip, uint8_t* out, int64_t stride_bytes) {
  const StripLines lines(strip);
  TE_UNROLL
  for (int row = 0; row < kWidth; ++row) {
    TE_UNROLL
    for (int part = 0; part < kStripParts; ++part) {
      uint8_t* address = out + part * kPartBytes;
      if constexpr (kStream) {
        stream_words(address, lines.words[part][row]);
      } else {
        store(reinterpret_cast<float*>(address), lines.words[part][row]);
      }
    }
    out += stride_bytes;
  }
}

[[gnu::noinline]] void write_part_of_codes(const Strip& strip, const StripExtent& extent,
                                           uint8_t* out, int64_t stride_bytes) {
  const StripLines lines(strip);
  for (int row = 0; row < extent.rows; ++row) {
    float words[kStripWords];
    for (int part = 0; part < kStripParts; ++part) {
      store(words + part * kWidth, lines.words[part][row]);
    }
    __builtin_memcpy(out + row * stride_bytes, words,
                     static_cast<uint64_t>(extent.blocks * kBlockBytes));
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
  const bool is_run = col_stride == 1 && extent.blocks == kStripBlocks;
  for (int row = 0; row < extent.rows; ++row) {
    if (is_run) {
      __builtin_memcpy(out, &joined[0][row], 4);
      __builtin_memcpy(out + 4, &joined[1][row], 4);
    } else {
      for (int block = 0; block < extent.blocks; ++block) {
        __builtin_memcpy(out + block * col_stride,
                         reinterpret_cast<const char*>(&joined[block / 4][row]) + block % 4, 1);
      }
    }
    out += row_stride;
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
  uint8_t* out = copy.data + place.row * copy.data_stride_bytes + place.block * kBlockBytes;
  const int64_t stride_bytes = place.row_step * copy.data_stride_bytes;
  if (extent.blocks != kStripBlocks || extent.rows != kWidth) {
    write_part_of_codes(strip, extent, out, stride_bytes);
  } else if (stream) {
    write_whole_codes<true>(strip, out, stride_bytes);
  } else {
    write_whole_codes<false>(strip, out, stride_bytes);
  }
  write_scales(
      strip, extent,
      copy.scales + place.row * copy.scale_row_stride + place.block * copy.scale_col_stride,
      place.row_step * copy.scale_row_stride, copy.scale_col_stride);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
