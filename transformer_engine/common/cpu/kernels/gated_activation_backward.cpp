// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The gated activations alone: with the plain ones in the same file, compilation took 9 seconds.
#include "cpu/simd/activation_backward.h"

namespace transformer_engine::cpu::TE_ISA {

extern const GatedActivationBackwardKernels gated_activation_backward_kernels = {
    .run = {TE_GATED_ACTIVATION_ROWS(backward)}};

}  // namespace transformer_engine::cpu::TE_ISA
