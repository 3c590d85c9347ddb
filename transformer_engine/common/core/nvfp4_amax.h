// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <transformer_engine/block_scaling.h>

namespace transformer_engine {

// compute_nvfp4_amax and quantize_nvfp4 take the same arguments; as problems with candidates of
// their own they are told apart by type.
struct Nvfp4AmaxProblem {
  const QuantizeNvfp4Args& quantize;
};

}  // namespace transformer_engine
