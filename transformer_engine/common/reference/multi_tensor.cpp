// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/multi_tensor.h"

#include <cmath>

#include "numerics/e8m0.h"
#include "numerics/half.h"
#include "numerics/multi_tensor.h"
#include "numerics/remainder.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

using numerics::view_at;

// The parameters at one position, and whatever keeps their precision.
struct Parameter {
  TensorView values, master, remainder, scale, amax, scale_inv;

  Parameter(const MultiTensorAdamArgs& args, size_t position)
      : values(args.params[position]),
        master(view_at(args.masters, position)),
        remainder(view_at(args.remainders, position)),
        scale(view_at(args.fp8_scales, position)),
        amax(view_at(args.fp8_amaxes, position)),
        scale_inv(view_at(args.fp8_scale_invs, position)) {}

  float load(int64_t i) const {
    if (remainder.data != nullptr) {
      return numerics::join_float({static_cast<const uint16_t*>(values.data)[i],
                                   static_cast<const int16_t*>(remainder.data)[i]});
    }
    return load_float(master.data != nullptr ? master : values, i);
  }

  void store(int64_t i, float value) const {
    if (remainder.data != nullptr) {
      const numerics::SplitFloat parts = numerics::split_float(value);
      static_cast<uint16_t*>(values.data)[i] = parts.high;
      static_cast<int16_t*>(remainder.data)[i] = parts.low;
      return;
    }
    if (master.data != nullptr) {
      store_float(master, i, value);
    }
    if (scale.data == nullptr) {
      store_float(values, i, value);
      return;
    }
    static_cast<uint8_t*>(values.data)[i] =
        encode_fp8(values.dtype, value * *static_cast<const float*>(scale.data));
    auto* largest = static_cast<float*>(amax.data);
    *largest = numerics::max_skip_nan(*largest, numerics::magnitude(value));
  }

  void finish() const {
    if (scale.data != nullptr && values.numel() > 0) {
      *static_cast<float*>(scale_inv.data) =
          numerics::inverse_scale(*static_cast<const float*>(scale.data));
    }
  }
};

void adam_tensor(const MultiTensorAdamArgs& args, size_t position,
                 const numerics::AdamNumbers<float>& numbers) {
  const Parameter parameter(args, position);
  const float inv_scale = args.inv_scale != nullptr ? *args.inv_scale : 1.0F;
  const TensorView &m = args.exp_avgs[position], &v = args.exp_avg_sqs[position];
  for (int64_t i = 0; i < m.numel(); ++i) {
    const float grad = load_float(args.grads[position], i) * inv_scale;
    float param = parameter.load(i), exp_avg = load_float(m, i), exp_avg_sq = load_float(v, i);
    if (args.mode == AdamMode::kDecoupled) {
      numerics::adam_update<true>(numbers, grad, param, exp_avg, exp_avg_sq);
    } else {
      numerics::adam_update<false>(numbers, grad, param, exp_avg, exp_avg_sq);
    }
    store_float(m, i, exp_avg);
    store_float(v, i, exp_avg_sq);
    parameter.store(i, param);
  }
  parameter.finish();
}

void sgd_tensor(const MultiTensorSgdArgs& args, size_t position) {
  const auto numbers = numerics::sgd_numbers(args);
  const auto rule = numerics::sgd_rule(args);
  const TensorView& params = args.params[position];
  const TensorView copy = view_at(args.copies, position);
  for (int64_t i = 0; i < params.numel(); ++i) {
    float param = load_float(params, i);
    float momentum = rule.has_momentum ? load_float(args.momenta[position], i) : 0.0F;
    numerics::sgd_update(numbers, rule, load_float(args.grads[position], i), param, momentum);
    store_float(params, i, param);
    if (rule.has_momentum) {
      store_float(args.momenta[position], i, momentum);
    }
    if (copy.data != nullptr) {
      store_float(copy, i, param);
    }
  }
}

}  // namespace

void multi_tensor_scale(const MultiTensorScaleArgs& args, const Context&) {
  const float scale = args.device_scale != nullptr ? *args.device_scale : args.scale;
  for (size_t position = 0; position < args.inputs.size(); ++position) {
    for (int64_t i = 0; i < args.inputs[position].numel(); ++i) {
      const float value = load_float(args.inputs[position], i);
      store_float(args.outputs[position], i, value * scale);
      if (args.noop != nullptr && !numerics::is_finite(value)) {
        *args.noop = 1;
      }
    }
  }
}

void multi_tensor_l2norm(const MultiTensorL2NormArgs& args, const Context&) {
  const double inv_scale = args.inv_scale != nullptr ? *args.inv_scale : 1.0;
  double total = 0.0;
  for (size_t position = 0; position < args.inputs.size(); ++position) {
    double sum = 0.0;
    for (int64_t i = 0; i < args.inputs[position].numel(); ++i) {
      const double value = load_float(args.inputs[position], i) * inv_scale;
      sum += value * value;
    }
    total += sum;
    if (args.per_tensor != nullptr) {
      args.per_tensor[position] = static_cast<float>(std::sqrt(sum));
    }
  }
  *args.norm = static_cast<float>(std::sqrt(total));
  if (args.noop != nullptr && !numerics::is_finite(*args.norm)) {
    *args.noop = 1;
  }
}

void multi_tensor_adam(const MultiTensorAdamArgs& args, const Context&) {
  if (args.noop != nullptr && *args.noop == 1) {
    return;
  }
  const auto numbers = numerics::adam_numbers(
      numerics::adam_settings(args), args.device_lr != nullptr ? *args.device_lr : args.lr,
      args.device_step != nullptr ? *args.device_step : args.step);
  for (size_t position = 0; position < args.params.size(); ++position) {
    adam_tensor(args, position, numbers);
  }
}

void multi_tensor_sgd(const MultiTensorSgdArgs& args, const Context&) {
  if (args.noop != nullptr && *args.noop != 0) {
    return;
  }
  for (size_t position = 0; position < args.params.size(); ++position) {
    sgd_tensor(args, position);
  }
}

void multi_tensor_scales(const MultiTensorScalesArgs& args, const Context&) {
  for (size_t position = 0; position < args.amaxes.size(); ++position) {
    for (int64_t i = 0; i < args.amaxes[position].numel(); ++i) {
      const float scale = numerics::current_scaling_scale(load_float(args.amaxes[position], i),
                                                          numerics::scaling_rule(args));
      store_float(args.scales[position], i, scale);
      store_float(args.scale_invs[position], i, numerics::inverse_scale(scale));
    }
  }
}

void multi_tensor_e8m0(const MultiTensorE8M0Args& args, const Context&) {
  for (size_t position = 0; position < args.amaxes.size(); ++position) {
    for (int64_t i = 0; i < args.amaxes[position].numel(); ++i) {
      static_cast<uint8_t*>(args.scale_invs[position].data)[i] =
          numerics::e8m0_from_amax(load_float(args.amaxes[position], i), numerics::kE8M0ScaledMax);
    }
  }
}

}  // namespace transformer_engine::reference
