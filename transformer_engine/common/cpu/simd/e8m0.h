// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// decode_e8m0 of numerics/e8m0.h in FP32 lanes.
#pragma once

#include "cpu/simd/vec.h"
#include "numerics/bits.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE Vf decode_e8m0_lanes(Vi codes) {
  const Vf normal = as_float(shift_left<numerics::kFloatMantissaWidth>(codes));
  const Vf value = select(less(zero(), normal), normal, set1(0x1p-127F));
  const Vf nan = as_float(set1_int(static_cast<int32_t>(numerics::kFloatQuietNaN)));
  return select(less(set1(0x1p127F), normal), nan, value);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
