// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace transformer_engine::pytorch {

// Lends torch's operators to the core; once, at import.
void register_torch_functions();

}  // namespace transformer_engine::pytorch
