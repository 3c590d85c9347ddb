// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised bodies of transformer_engine/normalization.h. Arguments have been checked
// (ops/normalization.cpp). The same bits for any number of threads and any instruction set.
#pragma once

#include <transformer_engine/normalization.h>

namespace transformer_engine::cpu {

void norm_forward(const NormForwardArgs& args, const Context& context);
void norm_backward(const NormBackwardArgs& args, const Context& context);

}  // namespace transformer_engine::cpu
