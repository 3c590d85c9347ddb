// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the cross entropy kernels, one row of logits a call. Formulas: cross_entropy.h.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"

namespace transformer_engine::cpu {

// Logits that the statistics take at a time: they are read three times, from the cache.
inline constexpr int64_t kCrossEntropyChunk = 2048;

struct CrossEntropyStatisticsRow {
  const void* input;  // [columns]
  int64_t columns;
  float* scratch;  // [kCrossEntropyChunk]
  // Results.
  float largest;  // 0 for -Inf
  float sum;
  float total;
};

// grad_input[c] = gradient * (e^(x - largest) * reciprocal - smoothed)
struct CrossEntropyGradientRow {
  const void* input;  // [columns]
  void* grad_input;   // [columns], may be the input
  int64_t columns;
  float gradient;
  float largest;
  float reciprocal;
  float smoothed;
};

struct CrossEntropyKernels {  // indexed [high_precision_index]
  void (*statistics[3])(CrossEntropyStatisticsRow& row);
  void (*gradient[3])(const CrossEntropyGradientRow& row);
};

TE_DECLARE_CPU_KERNELS(CrossEntropyKernels, cross_entropy_kernels)

}  // namespace transformer_engine::cpu
