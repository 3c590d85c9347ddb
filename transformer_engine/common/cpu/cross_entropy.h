// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised bodies of transformer_engine/cross_entropy.h. Arguments have been checked
// (ops/cross_entropy.cpp). The same bits for any number of threads and any instruction set.
#pragma once

#include <transformer_engine/cross_entropy.h>

namespace transformer_engine::cpu {

void cross_entropy_statistics(const CrossEntropyStatisticsArgs& args, const Context& context);
void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context& context);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const Context& context);

}  // namespace transformer_engine::cpu
