// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised bodies of transformer_engine/softmax.h. Arguments have been checked
// (ops/softmax.cpp). The same bits for any number of threads and any instruction set.
#pragma once

#include <transformer_engine/softmax.h>

namespace transformer_engine::cpu {

void softmax_forward(const SoftmaxForwardArgs& args, const Context& context);
void softmax_backward(const SoftmaxBackwardArgs& args, const Context& context);

}  // namespace transformer_engine::cpu
