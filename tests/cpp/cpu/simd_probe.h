// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cpu/simd/vec.h seen from outside: each function runs one vector operation over an array, in full
// vectors and then a partial one.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace transformer_engine::cpu {

struct SimdProbe {
  int width;
  void (*exp)(const float* x, float* y, int64_t n);
  void (*sigmoid)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*sin)(const float* x, float* y, int64_t n);
  void (*cos)(const float* x, float* y, int64_t n);
  void (*sqrt)(const float* x, float* y, int64_t n);
  void (*fma)(const float* a, const float* b, const float* c, float* y, int64_t n);
  void (*min)(const float* a, const float* b, float* y, int64_t n);
  void (*max)(const float* a, const float* b, float* y, int64_t n);
  void (*copysign)(const float* a, const float* b, float* y, int64_t n);
  void (*less)(const float* a, const float* b, float* y, int64_t n);        // 1 where a < b, else 0
  void (*swap_pairs)(const float* x, float* y, int64_t n);                  // n even
  void (*hide)(const float* x, const uint8_t* bytes, float* y, int64_t n);  // 0 where byte != 0
  void (*widen_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*narrow_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*widen_fp16)(const uint16_t* x, float* y, int64_t n);
  void (*narrow_fp16)(const float* x, uint16_t* y, int64_t n);
  // Of exactly `width` values, summed or compared in the tree of reduce_add and reduce_max.
  float (*reduce_add)(const float* x);
  float (*reduce_max)(const float* x);
};
TE_DECLARE_CPU_KERNELS(SimdProbe, simd_probe)

}  // namespace transformer_engine::cpu
