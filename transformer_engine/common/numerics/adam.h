// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One step of Adam for one number, operation by operation, so that scalar code, vectors and GPUs
// give the same bits. The formula: multi_tensor.h.
#pragma once

#include <cstdint>

#include "numerics/float_functions.h"

namespace transformer_engine::numerics {

// The numbers of one step, as floats or as a vector type V with equal lanes.
template <typename V>
struct AdamNumbers {
  V beta1, one_minus_beta1;
  V beta2, one_minus_beta2;
  V correction1;  // 1 / (1 - beta1^step)
  V correction2;  // 1 / sqrt(1 - beta2^step)
  V epsilon;
  V weight_decay;
  V minus_lr;
};

struct AdamSettings {
  double beta1, beta2;
  float epsilon, weight_decay;
  bool has_bias_correction;
};

// base^exponent by squaring, exponent >= 0: at most 62 roundings, on every device the same ones.
TE_NUMERIC double whole_power(double base, int32_t exponent) {
  double result = 1.0;
  for (auto left = static_cast<uint32_t>(exponent); left != 0; left >>= 1) {
    if ((left & 1U) != 0) {
      result *= base;
    }
    base *= base;
  }
  return result;
}

TE_HOST_DEVICE inline __attribute__((always_inline)) double square_root(double x) {
#if defined(__CUDA_ARCH__)
  return ::sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

TE_HOST_DEVICE inline __attribute__((always_inline)) AdamNumbers<float> adam_numbers(
    const AdamSettings& settings, float lr, int32_t step) {
  const double divisor1 =
      settings.has_bias_correction ? 1.0 - whole_power(settings.beta1, step) : 1.0;
  const double divisor2 =
      settings.has_bias_correction ? 1.0 - whole_power(settings.beta2, step) : 1.0;
  return {.beta1 = static_cast<float>(settings.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - settings.beta2),
          .correction1 = static_cast<float>(1.0 / divisor1),
          .correction2 = static_cast<float>(1.0 / square_root(divisor2)),
          .epsilon = settings.epsilon,
          .weight_decay = settings.weight_decay,
          .minus_lr = -lr};
}

// The last-but-one line is m / bias correction / (sqrt(v / bias correction) + epsilon) with
// reciprocals: one division an element instead of three.
template <bool kDecoupled, typename V>
TE_HOST_DEVICE inline __attribute__((always_inline)) void adam_update(const AdamNumbers<V>& n,
                                                                      V grad, V& param, V& exp_avg,
                                                                      V& exp_avg_sq) {
  if constexpr (!kDecoupled) {
    grad = fma(n.weight_decay, param, grad);
  }
  exp_avg = fma(n.beta1, exp_avg, n.one_minus_beta1 * grad);
  exp_avg_sq = fma(n.beta2, exp_avg_sq, n.one_minus_beta2 * grad * grad);
  const V denominator = fma(sqrt(exp_avg_sq), n.correction2, n.epsilon);
  V update = exp_avg * n.correction1 / denominator;
  if constexpr (kDecoupled) {
    update = fma(n.weight_decay, param, update);
  }
  param = fma(n.minus_lr, update, param);
}

}  // namespace transformer_engine::numerics
