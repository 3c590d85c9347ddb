// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One step of gradient descent for one number, operation by operation, so that scalar code, vectors
// and GPUs give the same bits. The formula: multi_tensor.h.
#pragma once

#include "numerics/float_functions.h"

namespace transformer_engine::numerics {

template <typename V>
struct SgdNumbers {
  V scale, weight_decay, momentum, one_minus_dampening, minus_lr;
};

struct SgdRule {
  bool decays_before, decays_after, has_momentum, is_nesterov, is_first_run;
};

template <typename V>
TE_HOST_DEVICE inline __attribute__((always_inline)) void sgd_update(const SgdNumbers<V>& n,
                                                                     const SgdRule& rule, V grad,
                                                                     V& param, V& momentum) {
  V step = grad * n.scale;
  if (rule.decays_before) {
    step = fma(n.weight_decay, param, step);
  }
  if (rule.has_momentum) {
    momentum = rule.is_first_run ? step : fma(n.momentum, momentum, n.one_minus_dampening * step);
    step = rule.is_nesterov ? fma(n.momentum, momentum, step) : momentum;
  }
  if (rule.decays_after) {
    step = fma(n.weight_decay, param, step);
  }
  param = fma(n.minus_lr, step, param);
}

}  // namespace transformer_engine::numerics
