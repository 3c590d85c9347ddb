// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Gradients in FP8 blocks or as MXFP8, in one pass: per element in BF16 it reads 4 bytes, and
// writes one for each copy and 2 for the rounded gradient, each where it is wanted.
#include "cuda/activation_blocks.h"
#include "cuda/device/quantize_source.h"

namespace transformer_engine::cuda {

void quantize_activation_gradient_blocks(const ActivationOperands& operands,
                                         const TensorView& grad_input,
                                         const BlockQuantizedOutput& blocks, cudaStream_t stream) {
  for_high_precision(grad_input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    quantize_source_blocks(ActivationGradSource<T, false>{operands}, data_of<T>(grad_input), blocks,
                           grad_input.rows, grad_input.cols, nullptr, stream);
  });
}

}  // namespace transformer_engine::cuda
