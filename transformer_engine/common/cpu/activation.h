// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised bodies of transformer_engine/activation.h. Arguments have been checked
// (ops/activation.cpp). The same bits for any number of threads and any instruction set.
#pragma once

#include <transformer_engine/activation.h>

namespace transformer_engine::cpu {

void activation_forward(const ActivationForwardArgs& args, const Context& context);
void activation_backward(const ActivationBackwardArgs& args, const Context& context);
void bias_gradient(const BiasGradientArgs& args, const Context& context);

}  // namespace transformer_engine::cpu
