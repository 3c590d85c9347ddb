// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/block_scaling.h>

#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

template struct EntryPoint<QuantizeFp8BlocksArgs>;
template struct EntryPoint<QuantizeMxfp8Args>;
template struct EntryPoint<DequantizeBlocksArgs>;

}  // namespace transformer_engine::cuda
