// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// For ops with a QuantizedOutput whose result is in memory.
#pragma once

#include <transformer_engine/block_scaling.h>

#include "cuda/dispatch.h"
#include "cuda/entry_points.h"

namespace transformer_engine::cuda {

// The copies of `values`, which are already rounded, with one scale per block.
inline void quantize_blocks(const TensorView& values, const BlockQuantizedOutput& blocks,
                            const Context& context) {
  if (any_copy(blocks).scales.dtype == DType::kFloat8E8M0) {
    EntryPoint<QuantizeMxfp8Args>::run({.input = values,
                                        .rowwise = blocks.rowwise,
                                        .columnwise = blocks.columnwise,
                                        .has_square_tiles = blocks.has_square_tiles},
                                       context);
    return;
  }
  EntryPoint<QuantizeFp8BlocksArgs>::run({.input = values,
                                          .rowwise = blocks.rowwise,
                                          .columnwise = blocks.columnwise,
                                          .epsilon = blocks.epsilon},
                                         context);
}

}  // namespace transformer_engine::cuda
