// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised bodies of the FP8-block and MXFP8 ops in transformer_engine/block_scaling.h
// and of dequantize_blocks; same bits as reference/block_scaling.h. Arguments have been checked
// (ops/block_scaling.cpp).
#pragma once

#include <transformer_engine/block_scaling.h>

#include "cpu/block_kernels.h"

namespace transformer_engine::cpu {

void quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context);
void quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context);
void dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context);

// Either of both quantizations, by the type of the scales.
void quantize_blocks(const TensorView& input, const BlockQuantizedOutput& output, int num_threads);

// Edge of the blocks: 32 or 128.
int64_t block_of(const BlockQuantizedOutput& output);

// The whole of `input` as one tile, whatever its size.
BlockTile whole_tile(const BlockQuantizedOutput& output, const TensorView& input, bool stream);

// Quantizes a matrix part by part.
class BlockQuantizer {
 public:
  // `input`: of which only shape and type are read.
  BlockQuantizer(const BlockQuantizedOutput& output, const TensorView& input);

  int64_t block() const { return whole_.block; }
  // One part, within tile_limits(block()), that begins where a block does; `values`: its first
  // element, of rows `stride` elements apart.
  void quantize_tile(const void* values, int64_t stride, int64_t row, int64_t col, int64_t rows,
                     int64_t cols) const;

 private:
  BlockTile whole_;
  void (*kernel_)(const BlockTile& tile);
};

}  // namespace transformer_engine::cpu
