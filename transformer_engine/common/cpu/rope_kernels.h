// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the rope kernels: the coefficients of one token, and its heads. Formulas: rope.h.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/io_index.h"
#include "cpu/isa.h"

namespace transformer_engine::cpu {

// Magnitude of angles up to which RopeKernels::sin_cos is good to 2 ulp.
inline constexpr float kRopeVectorLimit = 0x1p17F;

// The heads of one token: [groups, heads, channels], strides in elements.
struct RopeHeads {
  const void* input;
  void* output;
  const float* cos;  // [width]
  const float* sin;  // [width], of the channel's partner where it is transposed, with its sign
  int64_t width;
  int64_t channels;
  int64_t groups;
  int64_t heads;
  int64_t input_group_stride;
  int64_t input_head_stride;
  int64_t output_group_stride;
  int64_t output_head_stride;
};

struct RopeKernels {
  // Returns whether an angle is beyond the limit: its results are worthless then.
  bool (*sin_cos)(const float* angles, float* sin, float* cos, int64_t count);
  // Indexed [high_precision_index][is_interleaved].
  void (*rotate[3][2])(const RopeHeads& token);
};

TE_DECLARE_CPU_KERNELS(RopeKernels, rope_kernels)

}  // namespace transformer_engine::cpu
