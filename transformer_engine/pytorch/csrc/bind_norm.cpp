// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm for tests, benchmarks and clients of the extension. Inputs of any number of
// dimensions are normalized over the last one. `sm_margin` is about CUDA launches and has no
// meaning on the CPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>
#include <transformer_engine/normalization.h>

#include <optional>

#include "allocate.h"
#include "bind.h"
#include "output.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

namespace py = pybind11;
using OptionalTensor = std::optional<at::Tensor>;

at::Tensor new_statistic(const at::Tensor& input, int64_t rows) {
  return at::empty({rows}, input.options().dtype(at::ScalarType::Float).requires_grad(false));
}

void check_dimensions(const char* op, const at::Tensor& input) {
  TE_CHECK(input.dim() > 0, op, ": input has shape []; at least one dimension is required.");
}

struct ForwardOperands {
  at::Tensor input, weight;
  OptionalTensor bias;
  float epsilon;
  py::object output, quantizer, otype;
  bool zero_centered_gamma;
};

// (output, mean or None, rstd)
py::tuple forward(const char* op, NormKind kind, const ForwardOperands& operands) {
  check_dimensions(op, operands.input);
  const at::Tensor input = operands.input.contiguous();
  const at::Tensor weight = contiguous_operand(op, "weight", operands.weight, input);
  const at::Tensor bias = operands.bias.has_value()
                              ? contiguous_operand(op, "bias", *operands.bias, input)
                              : at::Tensor();
  Output output({.op = op,
                 .name = "ln_out",
                 .given = operands.output,
                 .quantizer = operands.quantizer,
                 .dtype = output_dtype(op, operands.otype, input)},
                input, input.sizes());
  NormForwardArgs args;
  args.kind = kind;
  args.input = matrix_view(input);
  args.gamma = vector_view(weight);
  args.beta = vector_view(bias);
  args.epsilon = operands.epsilon;
  args.zero_centered_gamma = operands.zero_centered_gamma;
  args.output = output.view();
  const at::Tensor rstd = new_statistic(input, args.input.rows);
  at::Tensor mean;
  if (kind == NormKind::kLayerNorm) {
    mean = new_statistic(input, args.input.rows);
    args.mean = float_data(mean, "mean");
  }
  args.rstd = float_data(rstd, "rstd");
  norm_forward(args, context_for(input));
  const py::object mean_or_none = mean.defined() ? py::cast(mean) : py::none();
  return py::make_tuple(output.finish(), mean_or_none, rstd);
}

struct BackwardOperands {
  at::Tensor grad_output, input, mean, rstd, weight, residual;  // mean, residual: may be undefined
  bool zero_centered_gamma;
};

const float* statistic_data(const char* op, const char* name, const at::Tensor& tensor,
                            int64_t rows) {
  TE_CHECK(tensor.numel() == rows, op, ": ", name, " has shape ", tensor.sizes(), "; ", rows,
           " elements, one per row, are required.");
  return float_data(tensor, concat(op, ": ", name).c_str());
}

// (grad_input, grad_weight[, grad_bias])
py::tuple backward(const char* op, NormKind kind, const BackwardOperands& operands) {
  check_dimensions(op, operands.input);
  const at::Tensor input = operands.input.contiguous();
  const at::Tensor grad_output = contiguous_operand(op, "dz", operands.grad_output, input);
  const at::Tensor weight = contiguous_operand(op, "gamma", operands.weight, input);
  const at::Tensor rstd = contiguous_operand(op, "rsigma", operands.rstd, input);
  const at::Tensor mean =
      operands.mean.defined() ? contiguous_operand(op, "mu", operands.mean, input) : at::Tensor();
  const at::Tensor residual = operands.residual.defined()
                                  ? contiguous_operand(op, "add", operands.residual, input)
                                  : at::Tensor();
  const at::Tensor grad_input = new_tensor(input.sizes(), input.scalar_type(), input);
  const at::Tensor grad_weight = at::empty(weight.sizes(), weight.options().requires_grad(false));
  NormBackwardArgs args;
  args.kind = kind;
  args.grad_output = matrix_view(grad_output);
  args.input = matrix_view(input);
  args.gamma = vector_view(weight);
  args.rstd = statistic_data(op, "rsigma", rstd, args.input.rows);
  args.mean = mean.defined() ? statistic_data(op, "mu", mean, args.input.rows) : nullptr;
  args.zero_centered_gamma = operands.zero_centered_gamma;
  args.grad_residual = matrix_view(residual);
  args.grad_input = matrix_view(grad_input);
  args.grad_gamma = vector_view(grad_weight);
  if (kind == NormKind::kRMSNorm) {
    norm_backward(args, context_for(input));
    return py::make_tuple(grad_input, grad_weight);
  }
  const at::Tensor grad_bias = at::empty_like(grad_weight);
  args.grad_beta = vector_view(grad_bias);
  norm_backward(args, context_for(input));
  return py::make_tuple(grad_input, grad_weight, grad_bias);
}

}  // namespace

void bind_norm(py::module_& m) {
  m.def(
      "layernorm_fwd",
      [](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, float eps,
         py::object ln_out, py::object quantizer, py::object otype, int /*sm_margin*/,
         bool zero_centered_gamma) {
        return forward("layernorm_fwd", NormKind::kLayerNorm,
                       {input, weight, bias, eps, std::move(ln_out), std::move(quantizer),
                        std::move(otype), zero_centered_gamma});
      },
      py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("eps"),
      py::arg("ln_out") = py::none(), py::arg("quantizer") = py::none(),
      py::arg("otype") = py::none(), py::arg("sm_margin") = 0,
      py::arg("zero_centered_gamma") = false,
      "LayerNorm over the last dimension: (output, mean, rstd); the statistics are float32 [rows]. "
      "otype, a value of DType, defaults to the input's type.");
  m.def(
      "rmsnorm_fwd",
      [](const at::Tensor& input, const at::Tensor& weight, float eps, py::object ln_out,
         py::object quantizer, py::object otype, int /*sm_margin*/, bool zero_centered_gamma) {
        return forward("rmsnorm_fwd", NormKind::kRMSNorm,
                       {input, weight, std::nullopt, eps, std::move(ln_out), std::move(quantizer),
                        std::move(otype), zero_centered_gamma});
      },
      py::arg("input"), py::arg("weight"), py::arg("eps"), py::arg("ln_out") = py::none(),
      py::arg("quantizer") = py::none(), py::arg("otype") = py::none(), py::arg("sm_margin") = 0,
      py::arg("zero_centered_gamma") = false,
      "RMSNorm over the last dimension: (output, None, rstd); rstd is float32 [rows]. otype, a "
      "value of DType, defaults to the input's type.");
  m.def(
      "layernorm_bwd",
      [](const at::Tensor& dz, const at::Tensor& x, const at::Tensor& mu, const at::Tensor& rsigma,
         const at::Tensor& gamma, int /*sm_margin*/, bool zero_centered_gamma) {
        return backward("layernorm_bwd", NormKind::kLayerNorm,
                        {dz, x, mu, rsigma, gamma, at::Tensor(), zero_centered_gamma});
      },
      py::arg("dz"), py::arg("x"), py::arg("mu"), py::arg("rsigma"), py::arg("gamma"),
      py::arg("sm_margin") = 0, py::arg("zero_centered_gamma") = false,
      "Gradients (grad_input, grad_weight, grad_bias) of layernorm_fwd.");
  m.def(
      "rmsnorm_bwd",
      [](const at::Tensor& dz, const at::Tensor& x, const at::Tensor& rsigma,
         const at::Tensor& gamma, int /*sm_margin*/, bool zero_centered_gamma) {
        return backward("rmsnorm_bwd", NormKind::kRMSNorm,
                        {dz, x, at::Tensor(), rsigma, gamma, at::Tensor(), zero_centered_gamma});
      },
      py::arg("dz"), py::arg("x"), py::arg("rsigma"), py::arg("gamma"), py::arg("sm_margin") = 0,
      py::arg("zero_centered_gamma") = false,
      "Gradients (grad_input, grad_weight) of rmsnorm_fwd.");
  m.def(
      "rmsnorm_bwd_add",
      [](const at::Tensor& dz, const at::Tensor& x, const at::Tensor& add, const at::Tensor& rsigma,
         const at::Tensor& gamma, int /*sm_margin*/, bool zero_centered_gamma) {
        return backward("rmsnorm_bwd_add", NormKind::kRMSNorm,
                        {dz, x, at::Tensor(), rsigma, gamma, add, zero_centered_gamma});
      },
      py::arg("dz"), py::arg("x"), py::arg("add"), py::arg("rsigma"), py::arg("gamma"),
      py::arg("sm_margin") = 0, py::arg("zero_centered_gamma") = false,
      "rmsnorm_bwd with `add` added to grad_input before it is rounded.");
}

}  // namespace transformer_engine::pytorch
