// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of transformer_engine/attention.h in FP64, one query at a time; host memory.
// Arguments have been checked (ops/attention.cpp).
#pragma once

#include <transformer_engine/attention.h>

namespace transformer_engine::reference {

void attention_forward(const AttentionForwardArgs& args, const Context& context);
void attention_backward(const AttentionBackwardArgs& args, const Context& context);

// What a probability is multiplied by: 0 for a dropped one.
double dropout_factor(const AttentionProblem& problem, const AttentionInputs& inputs,
                      int64_t index);

}  // namespace transformer_engine::reference
