// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the softmax kernels, one row a call. Formulas: softmax.h.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"

namespace transformer_engine::cpu {

struct SoftmaxForwardRow {
  const void* input;  // [keys]
  void* output;       // [keys]
  DType input_dtype;
  DType output_dtype;
  const uint8_t* mask;  // [keys], a byte other than 0 hides; or null
  int64_t visible;      // columns from here on are hidden
  int64_t keys;
  float scale;
  float* scratch;  // [visible]
};

struct SoftmaxBackwardRow {
  const void* grad_output;  // [keys]
  const void* output;       // [keys]
  void* grad_input;         // [keys]
  DType grad_output_dtype;
  DType output_dtype;
  DType grad_input_dtype;
  int64_t keys;
  float scale;
};

struct SoftmaxKernels {  // indexed [io_index]
  void (*forward[kIoCount])(const SoftmaxForwardRow& row);
  void (*backward[kIoCount])(const SoftmaxBackwardRow& row);
};

TE_DECLARE_CPU_KERNELS(SoftmaxKernels, softmax_kernels)

}  // namespace transformer_engine::cpu
