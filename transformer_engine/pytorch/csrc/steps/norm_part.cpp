// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/norm_part.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <transformer_engine/error.h>

#include "allocate.h"

#include "steps/saved_operand.h"

namespace transformer_engine::pytorch {

namespace {

float* data_of(const at::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

// [numel / hidden, hidden] of a contiguous tensor, however many dimensions are normalized together.
TensorView norm_view(const NormSpec& spec, const at::Tensor& tensor) {
  TensorView view = matrix_view(tensor);
  if (spec.hidden != 0) {  // else: as matrix_view counts them
    view.rows = tensor.numel() / spec.hidden;
  }
  view.cols = spec.hidden;
  return view;
}

}  // namespace

NormParameters read_norm_parameters(const NormSpec& spec, PyObject* module,
                                    const ParameterRule& required) {
  NormParameters parameters;
  const auto read = [&](const Name& name) {
    at::Tensor tensor = read_tensor(module, name, spec.label);
    TE_CHECK(tensor.defined(), spec.label, ": parameter ", name.text(), " is None; a tensor of ",
             spec.hidden, " elements is required.");
    TE_CHECK(tensor.numel() == spec.hidden, spec.label, ": parameter ", name.text(), " has shape ",
             tensor.sizes(), "; ", spec.hidden, " elements are required.");
    required.check(spec.label, tensor, name);
    return tensor;
  };
  parameters.gamma = read(spec.weight_name);
  if (spec.kind == NormKind::kLayerNorm) {
    parameters.beta = read(spec.bias_name);
    TE_CHECK_TYPE(parameters.beta.scalar_type() == parameters.gamma.scalar_type(), spec.label,
                  ": parameter ", spec.bias_name.text(), " has dtype ",
                  at::toString(parameters.beta.scalar_type()), " and ", spec.weight_name.text(),
                  " ", at::toString(parameters.gamma.scalar_type()), "; they must be equal.");
  }
  return parameters;
}

NormResult norm_forward(const NormSpec& spec, const at::Tensor& input,
                        const NormParameters& parameters, const NormRequest& request) {
  NormResult result;
  NormForwardArgs args;
  args.kind = spec.kind;
  args.input = norm_view(spec, input);
  const at::Tensor gamma = parameters.gamma.contiguous();
  const at::Tensor beta = parameters.beta.defined() ? parameters.beta.contiguous() : at::Tensor();
  args.gamma = vector_view(gamma);
  args.beta = vector_view(beta);
  args.epsilon = spec.epsilon;
  args.zero_centered_gamma = spec.zero_centered_gamma;
  if (request.wants_statistics) {
    result.rstd = new_tensor({args.input.rows}, at::kFloat, input);
    args.rstd = data_of(result.rstd);
    if (spec.kind == NormKind::kLayerNorm) {
      result.mean = new_tensor({args.input.rows}, at::kFloat, input);
      args.mean = data_of(result.mean);
    }
  }
  const bool is_fused = request.quantizer != nullptr &&
                        request.quantizer->prepare_fused(input.sizes(), input, request.usages,
                                                         &result.quantized, &args.quantized);
  if (request.wants_output || !is_fused) {
    result.output = new_tensor(input.sizes(), request.dtype, input);
    args.output = norm_view(spec, result.output);
  } else {
    args.output = {
        .dtype = dtype_of(request.dtype), .rows = args.input.rows, .cols = args.input.cols};
  }
  transformer_engine::norm_forward(args, context_for(input));
  if (request.quantizer != nullptr && !is_fused) {
    result.quantized = request.quantizer->quantize(result.output, request.usages);
  }
  return result;
}

void SavedNorm::save(const at::Tensor& norm_input, const NormParameters& parameters,
                     const NormResult& result) {
  using torch::autograd::SavedVariable;
  input = SavedVariable(norm_input, false);
  gamma = SavedVariable(parameters.gamma, false);
  mean = SavedVariable(result.mean, false);
  rstd = SavedVariable(result.rstd, false);
  has_beta = parameters.beta.defined();
  beta_dtype = has_beta ? parameters.beta.scalar_type() : at::kFloat;
}

void SavedNorm::reset() {
  for (auto* saved : {&input, &gamma, &mean, &rstd}) {
    saved->reset_data();
  }
}

SavedNorm::Tensors SavedNorm::unpack() const {
  return {.input = unpack_saved(input),
          .gamma = unpack_saved(gamma),
          .mean = unpack_saved(mean),
          .rstd = unpack_saved(rstd)};
}

NormGradients norm_backward(const NormSpec& spec, const SavedNorm::Tensors& saved,
                            const at::Tensor& grad_output, const NormWanted& wanted,
                            at::ScalarType beta_dtype) {
  NormGradients gradients;
  const auto& [input, saved_gamma, mean, rstd] = saved;
  const at::Tensor gamma = saved_gamma.contiguous();
  NormBackwardArgs args;
  args.kind = spec.kind;
  args.grad_output = norm_view(spec, grad_output);
  args.input = norm_view(spec, input);
  args.gamma = vector_view(gamma);
  args.mean = mean.defined() ? data_of(mean) : nullptr;
  args.rstd = data_of(rstd);
  args.zero_centered_gamma = spec.zero_centered_gamma;
  if (wanted.input) {
    gradients.input = new_tensor(input.sizes(), input.scalar_type(), input);
    args.grad_input = norm_view(spec, gradients.input);
  }
  if (wanted.gamma) {
    gradients.gamma = new_tensor(gamma.sizes(), gamma.scalar_type(), gamma);
    args.grad_gamma = vector_view(gradients.gamma);
  }
  if (wanted.beta) {
    gradients.beta = new_tensor(gamma.sizes(), beta_dtype, gamma);
    args.grad_beta = vector_view(gradients.beta);
  }
  transformer_engine::norm_backward(args, context_for(input));
  return gradients;
}

}  // namespace transformer_engine::pytorch
