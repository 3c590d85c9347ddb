// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of the NVFP4 ops in transformer_engine/block_scaling.h, one block at a time; host
// memory. Arguments have been checked (ops/nvfp4.cpp).
#pragma once

#include <transformer_engine/block_scaling.h>

#include "core/nvfp4_amax.h"

namespace transformer_engine::reference {

void compute_nvfp4_amax(const Nvfp4AmaxProblem& problem, const Context& context);
void quantize_nvfp4(const QuantizeNvfp4Args& args, const Context& context);

}  // namespace transformer_engine::reference
