// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tables of the block scaling kernels: one thread's share of an op. Any size, alignment and stride;
// in and out do not overlap.
//
// A tile is the part of a matrix that is quantized at once: one block high (FP8 blocks: two) and
// many wide. Of both copies alike, a *line* is what a block lies in: a row of the input for the
// rowwise copy, a column for the columnwise one.
#pragma once

#include <transformer_engine/block_scaling.h>

#include "cpu/isa.h"

namespace transformer_engine::cpu {

// How the scale of a block follows from its amax: numerics::CurrentScaling, or e8m0_from_amax.
struct BlockScaleRule {
  bool is_e8m0;
  bool is_power_of_two;  // every scale is one, E8M0 included
  float fp8_max;
  float epsilon;
  float largest;
};

struct BlockCopyTile {
  uint8_t* codes;  // null: no such copy; rows as stored
  int64_t codes_stride;
  void* scales;  // FP32 or E8M0: block b of line i has number i / lines_per_scale * line_stride +
  int64_t line_stride;  // b * block_stride
  int64_t block_stride;
  int64_t lines_per_scale;
  bool shares_amax;  // the blocks of a square tile take the amax of the tile
  BlockScaleRule rule;
};

struct BlockTile {
  const void* input;  // [rows, cols] FP32, BF16 or FP16
  int64_t input_stride;
  int64_t rows;  // within the limits of tile_limits(block)
  int64_t cols;
  int64_t block;  // elements: 32 (MXFP8) or 128 (FP8 blocks, whose columnwise codes are transposed)
  BlockCopyTile rowwise;
  BlockCopyTile columnwise;
  bool stream;  // stores around the caches, where the instruction set has them
};

// Memory is read fastest in whole rows, which is how tiles are as wide as the second-level cache
// allows (1 MiB, 256 KiB of input): measured, 4096 columns of 32 rows read 1.8 times as fast as
// 512. A transposed matrix is written in pieces as long as the tile is high, of which 256 bytes
// pass 1.7 times as fast as 128.
struct TileLimits {
  int64_t rows;
  int64_t cols;
};
constexpr TileLimits tile_limits(int64_t block) {
  return block == 32 ? TileLimits{32, 4096} : TileLimits{256, 1024};
}

struct BlockQuantizeKernels {
  void (*run[3][2])(const BlockTile& tile);  // [0 FP32, 1 BF16, 2 FP16][0 E4M3, 1 E5M2]
};
TE_DECLARE_CPU_KERNELS(BlockQuantizeKernels, block_quantize_kernels)

struct BlockDequantizeKernels {
  // Rows [begin, end) of any matrix that dequantize_blocks takes; by the type of the output.
  void (*run[3])(const DequantizeBlocksArgs& args, int64_t begin, int64_t end);
};
TE_DECLARE_CPU_KERNELS(BlockDequantizeKernels, block_dequantize_kernels)

}  // namespace transformer_engine::cpu
