// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/cross_entropy.h>

#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

template struct EntryPoint<CrossEntropyStatisticsArgs>;
template struct EntryPoint<CrossEntropyLossArgs>;
template struct EntryPoint<CrossEntropyBackwardArgs>;

}  // namespace transformer_engine::cuda
