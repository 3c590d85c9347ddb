// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the normalization kernels: rows of one thread. Formulas: normalization.h.
#pragma once

#include <transformer_engine/normalization.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"

namespace transformer_engine::cpu {

struct NormForwardRows {
  const void* input;  // [rows, hidden]
  void* output;       // [rows, hidden]
  DType input_dtype;
  DType output_dtype;
  const float* gain;  // [hidden] gamma, or 1 + gamma
  const float* beta;  // [hidden], LayerNorm only
  float* mean;        // [rows] or null
  float* rstd;        // [rows] or null
  int64_t rows;
  int64_t hidden;
  float epsilon;
};

struct NormBackwardRows {
  const void* grad_output;    // [rows, hidden]
  const void* input;          // [rows, hidden]
  const void* grad_residual;  // [rows, hidden] or null
  void* grad_input;           // [rows, hidden] or null
  DType grad_output_dtype;
  DType input_dtype;
  DType grad_residual_dtype;
  DType grad_input_dtype;
  const float* gain;  // [hidden]
  const float* mean;  // [rows], LayerNorm only
  const float* rstd;  // [rows]
  float* gamma_sum;   // [hidden] added to; null when no weight gradient is wanted
  float* beta_sum;    // [hidden] added to; LayerNorm: null exactly when gamma_sum is
  int64_t rows;
  int64_t hidden;
};

struct NormKernels {  // indexed [NormKind][io_index]
  void (*forward[2][kIoCount])(const NormForwardRows& rows);
  void (*backward[2][kIoCount])(const NormBackwardRows& rows);
};

TE_DECLARE_CPU_KERNELS(NormKernels, norm_kernels)

}  // namespace transformer_engine::cpu
