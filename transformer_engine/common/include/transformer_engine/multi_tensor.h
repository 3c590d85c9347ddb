// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Ops on lists of tensors, all in one call: scaling, norms, optimizer steps, scales of quantizers.
// Lists are parallel: tensors at one position have equal numbers of elements and are read as flat
// arrays. Types may differ from position to position. Empty lists and tensors are ordinary.
// Arithmetic is FP32, results are rounded once to the type of the tensor that is written; Inf and
// NaN propagate.
//
// `noop` is an int32 [1] that a training loop shares between these ops: those that look for numbers
// that are not finite set it to 1, the optimizer steps that take it write nothing when it is 1.
// Values that change from step to step can be read from device memory, so that a CUDA graph stays
// valid.
#pragma once

#include <transformer_engine/types.h>

#include <span>

namespace transformer_engine {

using TensorList = std::span<const TensorView>;

// output = input * scale; in place where both are one tensor. *noop = 1 if an input is not finite.
struct MultiTensorScaleArgs {
  TensorList inputs = {};   // FP32, BF16 or FP16
  TensorList outputs = {};  // FP32, BF16 or FP16
  float scale = 1.0F;
  const float* device_scale = nullptr;  // [1], read instead of `scale` when given
  int32_t* noop = nullptr;              // [1], may be null
};
void multi_tensor_scale(const MultiTensorScaleArgs& args, const Context& context);

// norm = sqrt(sum((x * inv_scale)^2)) over all tensors, and of each. Sums are added in a fixed
// order. *noop = 1 if the norm of all is not finite: an element is not, or a square overflows.
struct MultiTensorL2NormArgs {
  TensorList inputs = {};            // FP32, BF16 or FP16
  const float* inv_scale = nullptr;  // [1], null means 1
  float* norm = nullptr;             // [1], 0 for no elements
  float* per_tensor = nullptr;       // [number of tensors], may be null
  int32_t* noop = nullptr;           // [1], may be null
};
void multi_tensor_l2norm(const MultiTensorL2NormArgs& args, const Context& context);

enum class AdamMode : int32_t {
  kL2 = 0,         // weight decay is part of the gradient (Adam)
  kDecoupled = 1,  // weight decay is part of the update (AdamW)
};

// One step of Adam (Kingma and Ba, arXiv:1412.6980; AdamW: Loshchilov and Hutter,
// arXiv:1711.05101):
//   g = grad * inv_scale, and + weight_decay * p (kL2)
//   m = beta1 * m + (1 - beta1) * g        v = beta2 * v + (1 - beta2) * g^2
//   u = (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon), + weight_decay * p
//   p = p - lr * u                                                        (kDecoupled)
// p is the master where there is one, else the parameter. The numbers 1 - beta and 1 - beta^step
// are computed in FP64. Operation by operation: numerics/adam.h.
struct MultiTensorAdamArgs {
  TensorList grads = {};   // FP32, BF16 or FP16
  TensorList params = {};  // FP32, BF16 or FP16; E4M3 or E5M2 with fp8_scales; BF16 with remainders
  TensorList exp_avgs = {};     // m: FP32, BF16 or FP16
  TensorList exp_avg_sqs = {};  // v: FP32, BF16 or FP16
  TensorList masters = {};      // empty, or FP32: the parameter gets the rounded master
  // Empty, or int16: the master is the parameter and what its rounding to nearest left, see
  // numerics/remainder.h. A NaN becomes the canonical one.
  TensorList remainders = {};
  // Empty, or for FP8 parameters, which need masters: FP32 [1] each. The parameter gets
  // encode(p * scale), amax is raised to max |p|, scale_inv becomes 1 / scale; those of tensors
  // without elements stay.
  TensorList fp8_scales = {}, fp8_amaxes = {}, fp8_scale_invs = {};

  double beta1 = 0.9, beta2 = 0.999;
  float epsilon = 1e-8F, weight_decay = 0.0F;
  AdamMode mode = AdamMode::kDecoupled;
  bool has_bias_correction = true;  // false: the divisors 1 - beta^step are 1
  float lr = 1e-3F;
  int32_t step = 1;  // the first step is 1

  // Capturable: read from device memory, [1] each, where given.
  const float* device_lr = nullptr;
  const int32_t* device_step = nullptr;
  const float* inv_scale = nullptr;  // null means 1
  const int32_t* noop = nullptr;     // 1: nothing is written
};
void multi_tensor_adam(const MultiTensorAdamArgs& args, const Context& context);

// One step of gradient descent with momentum:
//   d = grad * scale, and + weight_decay * p unless it comes after momentum
//   with momentum: b = d in the first run, else momentum * b + (1 - dampening) * d;
//                  d = d + momentum * b (nesterov) or b
//   + weight_decay * p where that comes after momentum
//   p = p - lr * d; the copy gets p
struct MultiTensorSgdArgs {
  TensorList grads = {};    // FP32, BF16 or FP16
  TensorList params = {};   // FP32, BF16 or FP16
  TensorList momenta = {};  // b: FP32, BF16 or FP16; untouched without momentum
  TensorList copies = {};   // empty, or FP32, BF16 or FP16
  float weight_decay = 0.0F, momentum = 0.0F, dampening = 0.0F, lr = 1e-3F, scale = 1.0F;
  bool is_nesterov = false;
  bool is_first_run = false;
  bool decays_after_momentum = false;
  const int32_t* noop = nullptr;  // [1], may be null; not 0: nothing is written
};
void multi_tensor_sgd(const MultiTensorSgdArgs& args, const Context& context);

// Current scaling of many quantizers: compute_scale_from_amax (cast.h), element by element.
struct MultiTensorScalesArgs {
  TensorList amaxes = {};      // FP32
  TensorList scales = {};      // FP32
  TensorList scale_invs = {};  // FP32
  float fp8_max = 448.0F;
  float epsilon = 0.0F;
  bool power_of_two = false;
};
void multi_tensor_compute_scale_and_scale_inv(const MultiTensorScalesArgs& args,
                                              const Context& context);

// Codes of the smallest powers of two that are at least amax / 448 (E8M0, of E4M3 elements).
struct MultiTensorE8M0Args {
  TensorList amaxes = {};      // BF16
  TensorList scale_invs = {};  // E8M0
};
void multi_tensor_compute_scale_inv_e8m0(const MultiTensorE8M0Args& args, const Context& context);

}  // namespace transformer_engine
