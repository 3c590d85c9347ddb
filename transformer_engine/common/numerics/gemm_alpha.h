// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What scales a whole operand of a GEMM, and its accumulated products.
#pragma once

#include <transformer_engine/gemm.h>

#include "numerics/scale.h"

namespace transformer_engine {

// What every element of the operand is multiplied by; reads host memory.
inline float operand_scale_inv(const GemmOperand& operand) {
  if (operand.scale_inv != nullptr) {
    return *operand.scale_inv;
  }
  const BlockScales& scales = operand.scales;
  return scales.amax == nullptr || scales.is_row_scaled
             ? 1.0F
             : numerics::nvfp4_tensor_scale_inv(*scales.amax, scales.e4m3_max);
}

// What the accumulated products are multiplied by; reads host memory.
inline float gemm_alpha(const GemmArgs& args) {
  return operand_scale_inv(args.a) * operand_scale_inv(args.b);
}

}  // namespace transformer_engine
