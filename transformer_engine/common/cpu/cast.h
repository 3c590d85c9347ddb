// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threaded, vectorised bodies of transformer_engine/cast.h; same bits as reference/cast.h.
// Arguments have been checked (ops/cast.cpp).
#pragma once

#include <transformer_engine/cast.h>

namespace transformer_engine::cpu {

void quantize(const QuantizeArgs& args, const Context& context);
void dequantize(const DequantizeArgs& args, const Context& context);
void transpose_bytes(const TransposeArgs& args, const Context& context);
void compute_amax(const AmaxArgs& args, const Context& context);
void delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context);

}  // namespace transformer_engine::cpu
