// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the activation kernels: rows of one thread. Formulas: activation.h. A gated activation
// has input rows of 2 * cols elements, a plain one of cols. Null scales mean 1.
#pragma once

#include <transformer_engine/activation.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"

namespace transformer_engine::cpu {

constexpr int kPlainActivationCount = static_cast<int>(ActivationKind::kGLU);
constexpr int kActivationCount = static_cast<int>(ActivationKind::kSiTUGLU) + 1;

struct ActivationForwardRows {
  const void* input;        // [rows, cols or 2 * cols]
  const float* bias;        // [cols or 2 * cols] or null
  const float* act_scales;  // [rows] or null
  void* output;             // [rows, cols]
  DType input_dtype;
  DType output_dtype;
  int64_t rows;
  int64_t cols;
  int64_t glu_interleave_size;
  ActivationParams params;
};

struct ActivationBackwardRows {
  const void* grad_output;  // [rows, cols]
  const void* input;        // [rows, cols or 2 * cols]
  const float* bias;        // [cols or 2 * cols] or null
  const float* act_scales;  // [rows] or null
  void* grad_input;         // shape of input
  float* bias_sum;          // [cols or 2 * cols] added to, unrounded grad_input; or null
  float* grad_act_scales;   // [rows] or null
  DType grad_output_dtype;
  DType input_dtype;
  DType grad_input_dtype;
  int64_t rows;
  int64_t cols;
  int64_t glu_interleave_size;
  ActivationParams params;
};

struct ActivationForwardKernels {  // indexed [ActivationKind][io_index]
  void (*run[kActivationCount][kIoCount])(const ActivationForwardRows& rows);
};
struct PlainActivationBackwardKernels {
  void (*run[kPlainActivationCount][kIoCount])(const ActivationBackwardRows& rows);
};
struct GatedActivationBackwardKernels {  // indexed [ActivationKind - kGLU][io_index]
  void (*run[kActivationCount - kPlainActivationCount][kIoCount])(
      const ActivationBackwardRows& rows);
};

TE_DECLARE_CPU_KERNELS(ActivationForwardKernels, activation_forward_kernels)
TE_DECLARE_CPU_KERNELS(PlainActivationBackwardKernels, plain_activation_backward_kernels)
TE_DECLARE_CPU_KERNELS(GatedActivationBackwardKernels, gated_activation_backward_kernels)

}  // namespace transformer_engine::cpu
