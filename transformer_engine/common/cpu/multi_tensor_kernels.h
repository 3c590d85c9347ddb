// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the kernels of multi_tensor.h: each works on a run of elements of one tensor.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"
#include "numerics/adam.h"
#include "numerics/sgd.h"

namespace transformer_engine::cpu {

// Elements of a tensor from an offset on.
struct Run {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};

struct AdamRun {
  Run grad, param, exp_avg, exp_avg_sq;
  float* master = nullptr;       // or null
  int16_t* remainder = nullptr;  // or null
  float fp8_scale = 1.0F;        // of FP8 parameters
  float inv_scale = 1.0F;        // of the gradient
  int64_t count = 0;
};

struct SgdRun {
  Run grad, param, momentum, copy;
  int64_t count = 0;
};

// How the parameter is kept; index of MultiTensorKernels::adam.
enum AdamKind { kAdamPlain = 0, kAdamMaster = 1, kAdamRemainder = 2, kAdamFp8 = 3 };
// Whether grad, param and moments have these types: with one kernel for them each, and one for any.
enum AdamTypes { kAdamFloats = 0, kAdamBf16Param = 1, kAdamAnyTypes = 2 };

struct MultiTensorKernels {
  // output = input * scale; whether all of the input was finite.
  bool (*scale)(const Run& input, const Run& output, float scale, int64_t count);
  // Sum of (x * inv_scale)^2; indexed [high_precision_index].
  float (*sum_of_squares[3])(const void* input, float inv_scale, int64_t count);
  // Returns max |param| of FP8 parameters, 0 else. Indexed [kind][types][is decoupled].
  float (*adam[4][3][2])(const AdamRun& run, const numerics::AdamNumbers<float>& numbers);
  void (*sgd[kIoCount])(const SgdRun& run, const numerics::SgdNumbers<float>& numbers,
                        const numerics::SgdRule& rule);
};

TE_DECLARE_CPU_KERNELS(MultiTensorKernels, multi_tensor_kernels)

}  // namespace transformer_engine::cpu
