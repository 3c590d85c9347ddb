// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The core's own GEMMs on the CPU.
#pragma once

#include <transformer_engine/gemm.h>

namespace transformer_engine::cpu {

struct GemmKernels;  // gemm_kernels.h
struct GemmSkinnyKernels;

// Any problem: both operands are packed into panels of BF16 pairs or FP32, then multiplied tile by
// tile.
void gemm_packed(const GemmArgs& args, const Context& context);

// A few rows of A against B stored [n, k]: bound by reading B, which is read once and never packed.
const char* gemm_skinny_refusal(const GemmArgs& args, const Context& context);
void gemm_skinny(const GemmArgs& args, const Context& context);

// The same on kernels of the caller's choice: how tests reach every instruction set.
void gemm_packed_with(const GemmKernels& kernels, const GemmArgs& args, const Context& context);
void gemm_skinny_with(const GemmSkinnyKernels& kernels, const GemmArgs& args,
                      const Context& context);

}  // namespace transformer_engine::cpu
