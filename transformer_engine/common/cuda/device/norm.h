// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of transformer_engine/normalization.h in kernels: every kernel that computes a value
// of a norm uses these, so that they agree in every bit.
#pragma once

#include "cuda/device/typed.h"

namespace transformer_engine::cuda {

struct NormStatistics {
  float mean;  // 0 for RMSNorm
  float rstd;
};

// What turns the input of a norm into its output, but for the statistics of the rows.
struct NormAffine {
  TypedPointer gamma;  // [hidden]
  TypedPointer beta;   // [hidden] or null
  float gamma_addend;  // 1 when gamma is zero-centered, 0 otherwise
  int64_t hidden;
};

inline NormAffine norm_affine(const TensorView& gamma, const TensorView& beta,
                              bool is_zero_centered) {
  return {.gamma = typed(gamma),
          .beta = typed(beta),
          .gamma_addend = is_zero_centered ? 1.0F : 0.0F,
          .hidden = gamma.cols};
}

// g of columns [col, col + kSourceVector).
template <bool kAligned>
__device__ __forceinline__ void load_gain(const NormAffine& affine, int64_t col,
                                          float (&gain)[kSourceVector]) {
  load_typed<kAligned>(affine.gamma, 0, col, affine.hidden, gain);
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    gain[i] += affine.gamma_addend;
  }
}

// `values` becomes (x - mean) * rstd * g + beta; 0 beyond the row.
template <bool kAligned>
__device__ __forceinline__ void apply_norm(const NormAffine& affine,
                                           const NormStatistics& statistics, int64_t col,
                                           float (&values)[kSourceVector]) {
  float gain[kSourceVector];
  float beta[kSourceVector] = {};
  load_gain<kAligned>(affine, col, gain);
  if (affine.beta.data != nullptr) {
    load_typed<kAligned>(affine.beta, 0, col, affine.hidden, beta);
  }
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    const float y = fmaf((values[i] - statistics.mean) * statistics.rstd, gain[i], beta[i]);
    values[i] = kAligned || col + i < affine.hidden ? y : 0.0F;
  }
}

// Of a row: the sum of the deviations from `center` and that of their squares. The mean of the
// deviations repairs the rounding of `center`, which for a row far from 0 is what the variance
// would drown in.
__device__ __forceinline__ NormStatistics statistics_of(bool is_layer_norm, float center,
                                                        const float (&sums)[2], int64_t hidden,
                                                        float epsilon) {
  const float count = static_cast<float>(hidden > 0 ? hidden : 1);
  const float shift = is_layer_norm ? sums[0] / count : 0.0F;
  const float spread = sums[1] / count - shift * shift;
  return {.mean = center + shift, .rstd = 1.0F / sqrtf((spread < 0.0F ? 0.0F : spread) + epsilon)};
}

__device__ __forceinline__ void add_deviations(const float (&values)[kSourceVector], float center,
                                               int64_t count, float (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    const float deviation = i < count ? values[i] - center : 0.0F;
    sums[0] += deviation;
    sums[1] = fmaf(deviation, deviation, sums[1]);
  }
}

__device__ __forceinline__ float sum_of(const float (&values)[kSourceVector], float sum) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    sum += values[i];
  }
  return sum;
}

}  // namespace transformer_engine::cuda
