// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Correctly rounded functions of FP32 numbers, under the names that vectors have them: rules that
// are templates over the type of a number mean the same for both.
#pragma once

#include "numerics/host_device.h"

namespace transformer_engine::numerics {

// a * b + c, rounded once.
TE_HOST_DEVICE inline __attribute__((always_inline)) float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return ::fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
TE_HOST_DEVICE inline __attribute__((always_inline)) float sqrt(float x) {
#if defined(__CUDA_ARCH__)
  return ::sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

}  // namespace transformer_engine::numerics
