// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lists of tensors for the ops of multi_tensor.h, and what the optimizers must give: the FP64
// formula with running error bounds.
#pragma once

#include <transformer_engine/multi_tensor.h>

#include <cstring>
#include <vector>

#include "helpers/running_error.h"
#include "numerics/remainder.h"

namespace transformer_engine::testing {

// Tensors of one list.
struct Tensors {
  std::vector<Matrix> matrices;
  std::vector<TensorView> views;

  void add(DType dtype, int64_t numel) { matrices.emplace_back(dtype, 1, numel); }
  size_t size() const { return matrices.size(); }
  Matrix& operator[](size_t i) { return matrices[i]; }
  TensorList list() {
    views.clear();
    for (Matrix& matrix : matrices) {
      views.push_back(matrix.view());
    }
    return views;
  }
};

inline ::testing::AssertionResult same_tensors(Tensors& got, Tensors& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto same = same_bytes(got[i], expected[i]);
    if (!same) {
      return ::testing::AssertionFailure() << "tensor " << i << ": " << same.message();
    }
  }
  return ::testing::AssertionSuccess();
}

enum class AdamKept { kParam, kMaster, kRemainder, kFp8 };  // where the precise parameter is

struct AdamCase {
  AdamKept kept = AdamKept::kParam;
  DType grad = DType::kFloat32, param = DType::kFloat32, moment = DType::kFloat32;
  AdamMode mode = AdamMode::kDecoupled;
  bool has_bias_correction = true;
  bool is_capturable = false;
};

constexpr AdamMode kAdamModes[] = {AdamMode::kL2, AdamMode::kDecoupled};

// Every combination of types that an optimizer meets.
inline std::vector<AdamCase> adam_cases() {
  std::vector<AdamCase> cases;
  for (const AdamMode mode : kAdamModes) {
    for (const DType moment : kHighPrecision) {
      for (const DType grad : kHighPrecision) {
        for (const DType param : kHighPrecision) {
          for (const AdamKept kept : {AdamKept::kParam, AdamKept::kMaster}) {
            cases.push_back({kept, grad, param, moment, mode, grad != param, moment != grad});
          }
        }
        cases.push_back({AdamKept::kRemainder, grad, DType::kBFloat16, moment, mode});
        for (const DType param : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
          cases.push_back({AdamKept::kFp8, grad, param, moment, mode});
        }
      }
    }
  }
  return cases;
}

class AdamProblem {
 public:
  AdamProblem(const AdamCase& setting, const std::vector<int64_t>& sizes) : setting_(setting) {
    uint32_t seed = 1;
    for (const int64_t size : sizes) {
      Matrix weights(DType::kFloat32, 1, size);
      fill_normal(weights, seed++);
      add(grads, setting.grad, size, seed++, 0.3F);
      add(exp_avgs, setting.moment, size, seed++, 0.2F);
      add(exp_avg_sqs, setting.moment, size, seed++, 0.0F);
      for (int64_t i = 0; i < size; ++i) {  // as squares are
        exp_avg_sqs[exp_avg_sqs.size() - 1].set(
            i, static_cast<float>(std::pow(grads[grads.size() - 1].get(i), 2)));
      }
      add_weights(weights);
    }
  }

  MultiTensorAdamArgs args() {
    MultiTensorAdamArgs args{.grads = grads.list(),
                             .params = params.list(),
                             .exp_avgs = exp_avgs.list(),
                             .exp_avg_sqs = exp_avg_sqs.list(),
                             .masters = masters.list(),
                             .remainders = remainders.list(),
                             .fp8_scales = scales.list(),
                             .fp8_amaxes = amaxes.list(),
                             .fp8_scale_invs = scale_invs.list()};
    args.beta1 = kBeta1;
    args.beta2 = kBeta2;
    args.epsilon = kEpsilon;
    args.weight_decay = kWeightDecay;
    args.mode = setting_.mode;
    args.has_bias_correction = setting_.has_bias_correction;
    args.lr = kLr;
    args.step = kStep;
    if (setting_.is_capturable) {
      args.lr = args.step = -1;
      args.device_lr = &lr;
      args.device_step = &step;
      args.inv_scale = &inv_scale;
      args.noop = &noop;
    }
    return args;
  }

  // Of element i of a tensor before the step: what p, m and v must become.
  struct Result {
    Expected param, exp_avg, exp_avg_sq;
  };
  Result expected(size_t tensor, int64_t i) {
    const auto constant = [](double value) { return Approximate::rounded(value); };
    const auto number = [](double value) { return Approximate::exact(value); };
    const Approximate p = number(precise_param(tensor, i));
    Approximate g = number(grads[tensor].get(i));
    if (setting_.is_capturable) {
      g = g * number(inv_scale);
    }
    if (setting_.mode == AdamMode::kL2) {
      g = g + number(kWeightDecay) * p;
    }
    const Approximate m =
        constant(kBeta1) * number(exp_avgs[tensor].get(i)) + constant(1.0 - kBeta1) * g;
    const Approximate v =
        constant(kBeta2) * number(exp_avg_sqs[tensor].get(i)) + constant(1.0 - kBeta2) * g * g;
    const bool corrects = setting_.has_bias_correction;
    const Approximate divisor1 = constant(corrects ? 1.0 - std::pow(kBeta1, kStep) : 1.0);
    const Approximate divisor2 = constant(corrects ? 1.0 - std::pow(kBeta2, kStep) : 1.0);
    Approximate u = m / divisor1 / (root(v / divisor2) + number(kEpsilon));
    if (setting_.mode == AdamMode::kDecoupled) {
      u = u + number(kWeightDecay) * p;
    }
    return {(p - number(kLr) * u).expected(), m.expected(), v.expected()};
  }

  double precise_param(size_t tensor, int64_t i) {
    switch (setting_.kept) {
      case AdamKept::kParam:
        return params[tensor].get(i);
      case AdamKept::kRemainder:
        return numerics::join_float(
            {params[tensor].data<uint16_t>()[i], remainders[tensor].data<int16_t>()[i]});
      default:
        return masters[tensor].get(i);
    }
  }
  DType precise_dtype() const {
    return setting_.kept == AdamKept::kParam ? setting_.param : DType::kFloat32;
  }

  static constexpr double kBeta1 = 0.9, kBeta2 = 0.98;
  static constexpr float kEpsilon = 1e-6F, kWeightDecay = 0.03F, kLr = 0.07F;
  static constexpr int32_t kStep = 5;

  Tensors grads, params, exp_avgs, exp_avg_sqs, masters, remainders, scales, amaxes, scale_invs;
  float lr = kLr, inv_scale = 0.3F;
  int32_t step = kStep, noop = 0;

 private:
  static void add(Tensors& tensors, DType dtype, int64_t size, uint32_t seed, float spread) {
    tensors.add(dtype, size);
    fill_normal(tensors[tensors.size() - 1], seed, 0.0F, spread);
  }

  void add_weights(Matrix& weights) {
    params.add(setting_.param, weights.numel());
    Matrix& param = params[params.size() - 1];
    if (setting_.kept == AdamKept::kRemainder) {
      remainders.add(DType::kInt16, weights.numel());
      for (int64_t i = 0; i < weights.numel(); ++i) {
        const auto parts = numerics::split_float(weights.data<float>()[i]);
        param.data<uint16_t>()[i] = parts.high;
        remainders[remainders.size() - 1].data<int16_t>()[i] = parts.low;
      }
      return;
    }
    if (setting_.kept != AdamKept::kParam) {
      masters.matrices.push_back(weights);
    }
    if (setting_.kept == AdamKept::kFp8) {
      fill_random_bytes(param, 3);
      for (Tensors* numbers : {&scales, &amaxes, &scale_invs}) {
        numbers->add(DType::kFloat32, 1);
      }
      scales[scales.size() - 1].set(0, 37.5F);
      amaxes[amaxes.size() - 1].set(0, static_cast<float>(params.size() % 2 == 0 ? 100.0 : 0.0));
      return;
    }
    for (int64_t i = 0; i < weights.numel(); ++i) {
      param.set(i, weights.data<float>()[i]);
    }
  }

  AdamCase setting_;
};

inline void expect_same_adam(AdamProblem& got, AdamProblem& expected) {
  EXPECT_TRUE(same_tensors(got.params, expected.params)) << "params";
  EXPECT_TRUE(same_tensors(got.exp_avgs, expected.exp_avgs)) << "exp_avgs";
  EXPECT_TRUE(same_tensors(got.exp_avg_sqs, expected.exp_avg_sqs)) << "exp_avg_sqs";
  EXPECT_TRUE(same_tensors(got.masters, expected.masters)) << "masters";
  EXPECT_TRUE(same_tensors(got.remainders, expected.remainders)) << "remainders";
  EXPECT_TRUE(same_tensors(got.amaxes, expected.amaxes)) << "amaxes";
  EXPECT_TRUE(same_tensors(got.scale_invs, expected.scale_invs)) << "scale_invs";
}

struct SgdCase {
  DType grad = DType::kFloat32, param = DType::kFloat32, momentum = DType::kFloat32;
  bool has_copy = false;
  float momentum_rate = 0.9F;
  float weight_decay = 0.03F;
  bool is_nesterov = false, is_first_run = false, decays_after_momentum = false;
};

inline std::vector<SgdCase> sgd_cases() {
  std::vector<SgdCase> cases;
  for (const DType grad : kHighPrecision) {
    for (const DType param : kHighPrecision) {
      cases.push_back({grad, param, param, grad != param});
    }
  }
  for (const float momentum : {0.0F, 0.9F}) {
    for (const float decay : {0.0F, 0.03F}) {
      for (int flags = 0; flags < 8; ++flags) {
        cases.push_back({.has_copy = true,
                         .momentum_rate = momentum,
                         .weight_decay = decay,
                         .is_nesterov = (flags & 1) != 0,
                         .is_first_run = (flags & 2) != 0,
                         .decays_after_momentum = (flags & 4) != 0});
      }
    }
  }
  return cases;
}

class SgdProblem {
 public:
  SgdProblem(const SgdCase& setting, const std::vector<int64_t>& sizes) : setting_(setting) {
    uint32_t seed = 1;
    for (const int64_t size : sizes) {
      grads.add(setting.grad, size);
      params.add(setting.param, size);
      momenta.add(setting.momentum, size);
      for (Tensors* list : {&grads, &params, &momenta}) {
        fill_normal((*list)[list->size() - 1], seed++);
      }
      if (setting.has_copy) {
        copies.add(DType::kFloat16, size);
      }
    }
  }

  MultiTensorSgdArgs args() {
    return {.grads = grads.list(),
            .params = params.list(),
            .momenta = momenta.list(),
            .copies = copies.list(),
            .weight_decay = setting_.weight_decay,
            .momentum = setting_.momentum_rate,
            .dampening = kDampening,
            .lr = kLr,
            .scale = kScale,
            .is_nesterov = setting_.is_nesterov,
            .is_first_run = setting_.is_first_run,
            .decays_after_momentum = setting_.decays_after_momentum,
            .noop = &noop};
  }

  struct Result {
    Expected param, momentum;
  };
  Result expected(size_t tensor, int64_t i) {
    const auto number = [](double value) { return Approximate::exact(value); };
    const Approximate p = number(params[tensor].get(i));
    const Approximate decay = number(setting_.weight_decay) * p;
    Approximate b = number(momenta[tensor].get(i));
    Approximate d = number(grads[tensor].get(i)) * number(kScale);
    if (!setting_.decays_after_momentum) {
      d = d + decay;
    }
    if (setting_.momentum_rate != 0.0F) {
      const Approximate mu = number(setting_.momentum_rate);
      b = setting_.is_first_run ? d : mu * b + Approximate::rounded(1.0 - kDampening) * d;
      d = setting_.is_nesterov ? d + mu * b : b;
    }
    if (setting_.decays_after_momentum) {
      d = d + decay;
    }
    return {(p - number(kLr) * d).expected(), b.expected()};
  }

  static constexpr float kDampening = 0.1F, kLr = 0.07F, kScale = 0.25F;
  Tensors grads, params, momenta, copies;
  int32_t noop = 0;

 private:
  SgdCase setting_;
};

inline void expect_same_sgd(SgdProblem& got, SgdProblem& expected) {
  EXPECT_TRUE(same_tensors(got.params, expected.params)) << "params";
  EXPECT_TRUE(same_tensors(got.momenta, expected.momenta)) << "momenta";
  EXPECT_TRUE(same_tensors(got.copies, expected.copies)) << "copies";
}

}  // namespace transformer_engine::testing
