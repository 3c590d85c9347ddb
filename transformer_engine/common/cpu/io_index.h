// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Indices into kernel tables by element type.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine::cpu {

inline int high_precision_index(DType dtype) {
  return dtype == DType::kFloat32 ? 0 : dtype == DType::kBFloat16 ? 1 : 2;
}
inline int fp8_index(DType dtype) { return dtype == DType::kFloat8E4M3 ? 0 : 1; }

constexpr int kIoCount = 4;  // FP32, BF16, FP16 throughout, or any mix of them

// The entry for operands of these types.
template <typename... Types>
int io_index(DType first, Types... others) {
  if (((others != first) || ...)) {
    return 3;
  }
  return high_precision_index(first);
}

}  // namespace transformer_engine::cpu
