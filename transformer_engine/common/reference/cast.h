// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scalar meaning of every op in transformer_engine/cast.h, one element at a time; host memory.
// Arguments have been checked (ops/cast.cpp).
#pragma once

#include <transformer_engine/cast.h>

#include "numerics/element.h"

namespace transformer_engine::reference {

void quantize(const QuantizeArgs& args, const Context& context);
void dequantize(const DequantizeArgs& args, const Context& context);
void transpose_bytes(const TransposeArgs& args, const Context& context);
void compute_amax(const AmaxArgs& args, const Context& context);
void compute_scale_from_amax(const ScaleFromAmaxArgs& args, const Context& context);
void delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context);

// FP8 code of value in `format`, a per-tensor FP8 type, and back.
uint8_t encode_fp8(DType format, float value);
float decode_fp8(DType format, uint8_t code);

}  // namespace transformer_engine::reference
