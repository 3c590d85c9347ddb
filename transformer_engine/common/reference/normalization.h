// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of transformer_engine/normalization.h in FP64, one element at a time; host memory.
// Arguments have been checked (ops/normalization.cpp).
#pragma once

#include <transformer_engine/normalization.h>

namespace transformer_engine::reference {

void norm_forward(const NormForwardArgs& args, const Context& context);
void norm_backward(const NormBackwardArgs& args, const Context& context);

}  // namespace transformer_engine::reference
