// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the activation kernels: rows of one thread. Formulas: activation.h. A gated activation
// has input rows of 2 * cols elements, a plain one of cols.
#pragma once

#include <transformer_engine/activation.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"

namespace transformer_engine::cpu {

constexpr int kActivationCount = 12;

struct ActivationForwardRows {
  const void* input;  // [rows, cols or 2 * cols]
  const float* bias;  // [cols or 2 * cols] or null
  void* output;       // [rows, cols]
  DType input_dtype;
  DType output_dtype;
  int64_t rows;
  int64_t cols;
  ActivationParams params;
};

struct ActivationBackwardRows {
  const void* grad_output;  // [rows, cols]
  const void* input;        // [rows, cols or 2 * cols]
  const float* bias;        // [cols or 2 * cols] or null
  void* grad_input;         // shape of input
  float* bias_sum;          // [cols or 2 * cols] added to, unrounded grad_input; or null
  DType grad_output_dtype;
  DType input_dtype;
  DType grad_input_dtype;
  int64_t rows;
  int64_t cols;
  ActivationParams params;
};

struct ActivationForwardKernels {  // indexed [ActivationKind][io_index]
  void (*run[kActivationCount][kIoCount])(const ActivationForwardRows& rows);
};
struct ActivationBackwardKernels {
  void (*run[kActivationCount][kIoCount])(const ActivationBackwardRows& rows);
};

TE_DECLARE_CPU_KERNELS(ActivationForwardKernels, activation_forward_kernels)
TE_DECLARE_CPU_KERNELS(ActivationBackwardKernels, activation_backward_kernels)

}  // namespace transformer_engine::cpu
