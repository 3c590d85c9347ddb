// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of the FP8-block and MXFP8 ops in transformer_engine/block_scaling.h and of
// dequantize_blocks, one block at a time; host memory. Arguments have been checked
// (ops/block_scaling.cpp).
#pragma once

#include <transformer_engine/block_scaling.h>

namespace transformer_engine::reference {

void quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context);
void quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context);
void dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context);

// Either of both, by the type of the scales.
void quantize_blocks(const TensorView& input, const BlockQuantizedOutput& output,
                     const Context& context);

// Element (row, col), as stored, as FP32: q * scale, for E2M1 (q * scale) * tensor scale.
float load_dequantized(const BlockScaledMatrix& matrix, int64_t row, int64_t col);

}  // namespace transformer_engine::reference
