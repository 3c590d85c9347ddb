// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The NVFP4 ops of transformer_engine/block_scaling.h on the CPU.
#pragma once

#include <transformer_engine/block_scaling.h>

#include "core/nvfp4_amax.h"

namespace transformer_engine::cpu {

struct Nvfp4Kernels;
struct HadamardKernels;

void compute_nvfp4_amax(const Nvfp4AmaxProblem& problem, const Context& context);
void quantize_nvfp4(const QuantizeNvfp4Args& args, const Context& context);

// The same with the kernels of one instruction set: what the tests compare.
void compute_nvfp4_amax(const HadamardKernels& kernels, const QuantizeNvfp4Args& args,
                        int num_threads);
void quantize_nvfp4(const Nvfp4Kernels& kernels, const QuantizeNvfp4Args& args, int num_threads);

}  // namespace transformer_engine::cpu
