// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of transformer_engine/rope.h in FP64, one pair at a time; host memory. Arguments
// have been checked (ops/rope.cpp).
#pragma once

#include <transformer_engine/rope.h>

namespace transformer_engine::reference {

void rope(const RopeArgs& args, const Context& context);

}  // namespace transformer_engine::reference
