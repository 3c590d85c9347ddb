// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// From the arguments of multi_tensor.h to the numbers of the rules. Host code, not for
// cpu/kernels/.
#pragma once

#include <transformer_engine/multi_tensor.h>

#include "numerics/adam.h"
#include "numerics/scale.h"
#include "numerics/sgd.h"

namespace transformer_engine::numerics {

// The tensor at one position of a list that may be empty.
inline TensorView view_at(TensorList list, size_t position) {
  return list.empty() ? TensorView{} : list[position];
}

inline AdamSettings adam_settings(const MultiTensorAdamArgs& args) {
  return {.beta1 = args.beta1,
          .beta2 = args.beta2,
          .epsilon = args.epsilon,
          .weight_decay = args.weight_decay,
          .has_bias_correction = args.has_bias_correction};
}

inline SgdNumbers<float> sgd_numbers(const MultiTensorSgdArgs& args) {
  return {.scale = args.scale,
          .weight_decay = args.weight_decay,
          .momentum = args.momentum,
          .one_minus_dampening = 1.0F - args.dampening,
          .minus_lr = -args.lr};
}

inline SgdRule sgd_rule(const MultiTensorSgdArgs& args) {
  return {.decays_before = args.weight_decay != 0.0F && !args.decays_after_momentum,
          .decays_after = args.weight_decay != 0.0F && args.decays_after_momentum,
          .has_momentum = args.momentum != 0.0F,
          .is_nesterov = args.is_nesterov,
          .is_first_run = args.is_first_run};
}

inline CurrentScaling scaling_rule(const MultiTensorScalesArgs& args) {
  return {.fp8_max = args.fp8_max, .epsilon = args.epsilon, .power_of_two = args.power_of_two};
}

// What amaxes of E8M0 scales are brought to.
inline constexpr float kE8M0ScaledMax = 448.0F;

}  // namespace transformer_engine::numerics
