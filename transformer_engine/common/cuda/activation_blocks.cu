// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Forward results in FP8 blocks or as MXFP8, in one pass: for n columns of results in BF16 it reads
// 2 bytes for each operand (two where gated), and writes one byte for each copy and 2 for the
// rounded result, each where it is wanted.
#include "cuda/activation_blocks.h"
#include "cuda/device/quantize_source.h"

namespace transformer_engine::cuda {

void quantize_activation_blocks(const ActivationOperands& operands, const TensorView& output,
                                const BlockQuantizedOutput& blocks, cudaStream_t stream) {
  for_high_precision(output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    quantize_source_blocks(ActivationSource<T>{operands}, data_of<T>(output), blocks, output.rows,
                           output.cols, nullptr, stream);
  });
}

}  // namespace transformer_engine::cuda
