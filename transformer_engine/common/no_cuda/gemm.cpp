// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/grouped_gemm.h>

#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

template struct EntryPoint<GemmArgs>;
template struct EntryPoint<GroupedGemmArgs>;

}  // namespace transformer_engine::cuda
