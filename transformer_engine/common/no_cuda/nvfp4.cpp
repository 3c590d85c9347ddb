// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/block_scaling.h>

#include "core/nvfp4_amax.h"
#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

template struct EntryPoint<Nvfp4AmaxProblem>;
template struct EntryPoint<QuantizeNvfp4Args>;

}  // namespace transformer_engine::cuda
