// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The scalar meaning of gemm(): products summed in double along ascending k, then in FP32
// v = float(sum * alpha) + bias, GELU, + d when accumulating, and one rounding to d's type.
#pragma once

#include <transformer_engine/gemm.h>

namespace transformer_engine::reference {

void gemm(const GemmArgs& args, const Context& context);

}  // namespace transformer_engine::reference
