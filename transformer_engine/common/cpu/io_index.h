// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Kernel tables hold one entry per element type and one for mixed types.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine::cpu {

constexpr int kIoCount = 4;  // FP32, BF16, FP16 throughout, or any mix of them

// The entry for operands of `first` and the other types.
template <typename... Types>
int io_index(DType first, Types... others) {
  if (((others != first) || ...)) {
    return 3;
  }
  return first == DType::kFloat32 ? 0 : first == DType::kBFloat16 ? 1 : 2;
}

}  // namespace transformer_engine::cpu
