// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/multi_tensor.h>

#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

template struct EntryPoint<MultiTensorScaleArgs>;
template struct EntryPoint<MultiTensorL2NormArgs>;
template struct EntryPoint<MultiTensorAdamArgs>;
template struct EntryPoint<MultiTensorSgdArgs>;
template struct EntryPoint<MultiTensorScalesArgs>;
template struct EntryPoint<MultiTensorE8M0Args>;

}  // namespace transformer_engine::cuda
