// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised body of transformer_engine/rope.h. Arguments have been checked
// (ops/rope.cpp). The same bits for any number of threads and any instruction set.
#pragma once

#include <transformer_engine/rope.h>

namespace transformer_engine::cpu {

void rope(const RopeArgs& args, const Context& context);

}  // namespace transformer_engine::cpu
