// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of transformer_engine/cross_entropy.h in FP64, one element at a time; host memory.
// Arguments have been checked (ops/cross_entropy.cpp).
#pragma once

#include <transformer_engine/cross_entropy.h>

namespace transformer_engine::reference {

void cross_entropy_statistics(const CrossEntropyStatisticsArgs& args, const Context& context);
void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context& context);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const Context& context);

}  // namespace transformer_engine::reference
