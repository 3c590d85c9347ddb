// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of transformer_engine/activation.h in FP64, one element at a time; host memory.
// Arguments have been checked (ops/activation.cpp).
#pragma once

#include <transformer_engine/activation.h>

namespace transformer_engine::reference {

void activation_forward(const ActivationForwardArgs& args, const Context& context);
void activation_backward(const ActivationBackwardArgs& args, const Context& context);
void bias_gradient(const BiasGradientArgs& args, const Context& context);

}  // namespace transformer_engine::reference
