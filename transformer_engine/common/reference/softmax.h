// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of transformer_engine/softmax.h in FP64, one element at a time; host memory.
// Arguments have been checked (ops/softmax.cpp).
#pragma once

#include <transformer_engine/softmax.h>

namespace transformer_engine::reference {

void softmax_forward(const SoftmaxForwardArgs& args, const Context& context);
void softmax_backward(const SoftmaxBackwardArgs& args, const Context& context);

}  // namespace transformer_engine::reference
