// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/cast.h>

#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

template struct EntryPoint<QuantizeArgs>;
template struct EntryPoint<DequantizeArgs>;
template struct EntryPoint<TransposeArgs>;
template struct EntryPoint<AmaxArgs>;
template struct EntryPoint<ScaleFromAmaxArgs>;
template struct EntryPoint<DelayedScalingUpdateArgs>;

}  // namespace transformer_engine::cuda
