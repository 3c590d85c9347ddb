// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Results of the activations with one scale per block, in one pass over the operands. In files of
// their own, because a kernel has the code of every activation eight times: a thread's rows stay in
// registers.
#pragma once

#include "cuda/device/activation_source.h"

namespace transformer_engine::cuda {

// `output`: shape and type of the result, which is stored where data is not null.
void quantize_activation_blocks(const ActivationOperands& operands, const TensorView& output,
                                const BlockQuantizedOutput& blocks, cudaStream_t stream);

// The gradient of an activation that is not gated. (Of a gated one this would read the operands and
// compute twice, once for each half, as many bytes as a gradient in memory takes.)
void quantize_activation_gradient_blocks(const ActivationOperands& operands,
                                         const TensorView& grad_input,
                                         const BlockQuantizedOutput& blocks, cudaStream_t stream);

}  // namespace transformer_engine::cuda
