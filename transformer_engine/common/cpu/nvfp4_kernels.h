// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the NVFP4 kernels: one thread's share of an op.
#pragma once

#include <transformer_engine/block_scaling.h>

#include "cpu/isa.h"
#include "numerics/nvfp4.h"

namespace transformer_engine::cpu {

// A tile of the input makes whole cache lines of both copies: kNvfp4TileRows tokens are one line of
// a row of the columnwise codes; its columns are buffered meanwhile, 64 bytes for each.
constexpr int64_t kNvfp4TileRows = 128;
constexpr int64_t kNvfp4TileCols = 1024;

// Where the tile's part of a copy goes, as stored.
struct Nvfp4CopyTile {
  uint8_t* data = nullptr;  // null: not wanted
  int64_t data_stride_bytes = 0;
  uint8_t* scales = nullptr;
  int64_t scale_row_stride = 0;
  int64_t scale_col_stride = 0;
  const numerics::Nvfp4Scale* tensor = nullptr;  // of the amax
  bool is_row_scaled = false;                    // `tensor` is one per row
};

struct Nvfp4Tile {
  const void* input;  // [rows, cols] of FP32, BF16 or FP16; whole blocks but at the input's end
  int64_t input_stride;
  int64_t rows;
  int64_t cols;
  int64_t first_row;  // place in the input, multiples of 16
  int64_t first_col;
  Nvfp4CopyTile rowwise;
  Nvfp4CopyTile columnwise;
  const QuantizeNvfp4Args* options;
  bool stream;  // stores that bypass the caches, where the destination is aligned
};

// Rows in groups of 16, the last of which may be shorter.
struct HadamardAmaxStrip {
  const void* input;
  int64_t input_stride;
  int64_t rows;
  int64_t cols;
  uint16_t signs;
};
struct HadamardAmax {
  float before, after;  // max |x| before and after the transform, NaN skipped
};

// Index: 0 FP32, 1 BF16, 2 FP16.
struct Nvfp4Kernels {
  void (*quantize[3])(const Nvfp4Tile& tile);
};
struct HadamardKernels {
  HadamardAmax (*amax[3])(const HadamardAmaxStrip& strip);
};

TE_DECLARE_CPU_KERNELS(Nvfp4Kernels, nvfp4_kernels)
TE_DECLARE_CPU_KERNELS(HadamardKernels, hadamard_kernels)

}  // namespace transformer_engine::cpu
