// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm or RMSNorm inside a step.
#pragma once

#include <torch/csrc/autograd/saved_variable.h>
#include <transformer_engine/normalization.h>

#include <optional>
#include <string>

#include "quantizer.h"
#include "steps/module_step.h"
#include "steps/node_support.h"

namespace transformer_engine::pytorch {

struct NormSpec {
  std::string label;  // "LayerNormLinear.forward", for messages
  NormKind kind = NormKind::kLayerNorm;
  Name weight_name{"layer_norm_weight"};
  Name bias_name{"layer_norm_bias"};
  int64_t hidden = 0;
  float epsilon = 1e-5F;
  bool zero_centered_gamma = false;
};

struct NormParameters {
  at::Tensor gamma;  // [hidden]
  at::Tensor beta;   // [hidden]; LayerNorm only

  bool requires_grad() const {
    return gamma.requires_grad() || (beta.defined() && beta.requires_grad());
  }
};

NormParameters read_norm_parameters(const NormSpec& spec, PyObject* module,
                                    const ParameterRule& required);

struct NormResult {
  at::Tensor output;      // of `dtype`; undefined when only the quantized copy was asked for
  Operand quantized;      // when a quantizer was given
  at::Tensor mean, rstd;  // [rows] FP32; only with statistics
};

struct NormRequest {
  at::ScalarType dtype = at::kFloat;  // of the output
  bool wants_output = true;
  bool wants_statistics = true;
  Quantizer* quantizer = nullptr;  // quantize the output, in the same pass where the format can
  Usages usages = {};              // of the quantized output
};

// input: [rows, hidden] contiguous.
NormResult norm_forward(const NormSpec& spec, const at::Tensor& input,
                        const NormParameters& parameters, const NormRequest& request);

struct SavedNorm {
  torch::autograd::SavedVariable input, gamma, mean, rstd;
  bool has_beta = false;
  at::ScalarType beta_dtype = at::kFloat;

  void save(const at::Tensor& norm_input, const NormParameters& parameters,
            const NormResult& result);
  // To be called once in a backward: a checkpoint's hooks give each tensor out once.
  struct Tensors {
    at::Tensor input, gamma, mean, rstd;
  };
  Tensors unpack() const;
  void reset();
};

struct NormGradients {
  at::Tensor input, gamma, beta;
};
struct NormWanted {
  bool input = false, gamma = false, beta = false;
};
// grad_output: [rows, hidden] contiguous. grad_beta is of beta_dtype.
NormGradients norm_backward(const NormSpec& spec, const SavedNorm::Tensors& saved,
                            const at::Tensor& grad_output, const NormWanted& wanted,
                            at::ScalarType beta_dtype);

}  // namespace transformer_engine::pytorch
