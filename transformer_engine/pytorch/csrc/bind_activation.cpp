// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Activations, the bias gradient and the softmax of attention scores, for tests, benchmarks and
// clients of the extension.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/activation.h>
#include <transformer_engine/error.h>
#include <transformer_engine/softmax.h>

#include <string>

#include "allocate.h"
#include "bind.h"
#include "output.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

namespace py = pybind11;

struct NamedActivation {
  const char* name;
  ActivationKind kind;
  bool has_fused_bias_gradient;
};
constexpr NamedActivation kActivations[] = {
    {"gelu", ActivationKind::kGELU, true},      {"qgelu", ActivationKind::kQGELU, true},
    {"relu", ActivationKind::kReLU, true},      {"srelu", ActivationKind::kSReLU, true},
    {"silu", ActivationKind::kSiLU, true},      {"glu", ActivationKind::kGLU, false},
    {"geglu", ActivationKind::kGEGLU, false},   {"qgeglu", ActivationKind::kQGEGLU, false},
    {"reglu", ActivationKind::kReGLU, false},   {"sreglu", ActivationKind::kSReGLU, false},
    {"swiglu", ActivationKind::kSwiGLU, false},
};

struct Activation {
  std::string name;  // of the function, for messages
  ActivationKind kind;
  ActivationParams params;
  int64_t glu_interleave_size = 0;
};

// One scale per row of `input`, of any shape with that many elements; undefined: no scales.
void set_act_scales(const char* op, const at::Tensor& act_scales, const at::Tensor& input,
                    TensorView* view) {
  if (act_scales.defined()) {
    const int64_t rows = matrix_view(input).rows;
    TE_CHECK(act_scales.numel() == rows, op, ": act_scales has shape ", act_scales.sizes(), "; ",
             rows, " elements are required, one per row of the input.");
    *view = vector_view(act_scales);
  }
}

py::object forward(const Activation& activation, const at::Tensor& tensor, py::object quantizer,
                   const at::Tensor& act_scales = {}) {
  const char* op = activation.name.c_str();
  TE_CHECK(tensor.dim() > 0, op, ": input has shape []; at least one dimension is required.");
  const at::Tensor input = tensor.contiguous();
  auto sizes = input.sizes().vec();
  if (is_gated(activation.kind)) {
    TE_CHECK(sizes.back() % 2 == 0, op, ": input has shape ", input.sizes(),
             "; a gated activation needs an even last dimension.");
    sizes.back() /= 2;
  }
  Output output({.op = op,
                 .name = "output",
                 .given = py::none(),
                 .quantizer = std::move(quantizer),
                 .dtype = input.scalar_type()},
                input, sizes);
  ActivationForwardArgs args;
  args.kind = activation.kind;
  args.params = activation.params;
  args.input = matrix_view(input);
  args.glu_interleave_size = activation.glu_interleave_size;
  args.output = output.view();
  const at::Tensor scales =
      act_scales.defined() ? contiguous_operand(op, "act_scales", act_scales, input) : at::Tensor();
  set_act_scales(op, scales, input, &args.act_scales);
  activation_forward(args, context_for(input));
  return output.finish();
}

struct BackwardInputs {
  const at::Tensor& grad;
  const at::Tensor& input;
  bool with_grad_bias = false;
  at::Tensor act_scales = {};  // undefined: no scales
};

// grad_input; (grad_bias, grad_input) where that is wanted; (grad_input, grad_act_scales) with
// scales.
py::object backward(const Activation& activation, const BackwardInputs& inputs,
                    py::object quantizer) {
  const char* op = activation.name.c_str();
  TE_CHECK(inputs.input.dim() > 0, op, ": input has shape []; at least one dimension is required.");
  const at::Tensor input = inputs.input.contiguous();
  const at::Tensor grad_output = contiguous_operand(op, "grad", inputs.grad, input);
  Output output({.op = op,
                 .name = "output",
                 .given = py::none(),
                 .quantizer = std::move(quantizer),
                 .dtype = input.scalar_type()},
                input, input.sizes());
  ActivationBackwardArgs args;
  args.kind = activation.kind;
  args.params = activation.params;
  args.grad_output = matrix_view(grad_output);
  args.input = matrix_view(input);
  args.grad_input = output.view();
  args.glu_interleave_size = activation.glu_interleave_size;
  at::Tensor scales, grad_scales;
  if (inputs.act_scales.defined()) {
    scales = contiguous_operand(op, "act_scales", inputs.act_scales, input);
    set_act_scales(op, scales, input, &args.act_scales);
    grad_scales = at::empty(scales.sizes(), scales.options().requires_grad(false));
    args.grad_act_scales = vector_view(grad_scales);
  }
  at::Tensor grad_bias;
  if (inputs.with_grad_bias) {
    grad_bias = at::empty({input.size(-1)}, input.options().requires_grad(false));
    args.grad_bias = vector_view(grad_bias);
  }
  activation_backward(args, context_for(input));
  py::object grad_input = output.finish();
  if (grad_scales.defined()) {
    return py::make_tuple(grad_input, grad_scales);
  }
  return inputs.with_grad_bias ? py::object(py::make_tuple(grad_bias, grad_input)) : grad_input;
}

py::tuple quantize_with_bias_gradient(const at::Tensor& tensor, const py::object& quantizer) {
  TE_CHECK(tensor.dim() > 0,
           "bgrad_quantize: input has shape []; at least one dimension is "
           "required.");
  const at::Tensor grad_output = tensor.contiguous();
  const at::Tensor grad_bias =
      at::empty({grad_output.size(-1)}, grad_output.options().requires_grad(false));
  BiasGradientArgs args;
  args.grad_output = matrix_view(grad_output);
  args.grad_bias = vector_view(grad_bias);
  bias_gradient(args, context_for(grad_output));
  return py::make_tuple(grad_bias, quantizer.is_none() ? py::cast(tensor) : quantizer(tensor));
}

struct SoftmaxProblem {
  const char* op;
  SoftmaxMask mask_kind;
  int dimensions;  // 4: [batch, heads, queries, keys]; 3: [batch, queries, keys]
};

at::Tensor softmax(const SoftmaxProblem& problem, const at::Tensor& tensor, float scale,
                   const at::Tensor& mask = {}) {
  const char* op = problem.op;
  TE_CHECK(tensor.dim() == problem.dimensions, op, ": input has shape ", tensor.sizes(), "; ",
           problem.dimensions, " dimensions are required.");
  const at::Tensor input = tensor.contiguous();
  const at::Tensor output = new_tensor(input.sizes(), input.scalar_type(), input);
  SoftmaxForwardArgs args;
  args.mask_kind = problem.mask_kind;
  args.input = matrix_view(input);
  args.output = matrix_view(output);
  args.scale = scale;
  args.batch = input.size(0);
  args.heads = problem.dimensions == 4 ? input.size(1) : 1;
  args.queries = input.size(-2);
  at::Tensor mask_bytes;
  if (mask.defined()) {
    TE_CHECK_TYPE(mask.element_size() == 1, op, ": mask has dtype ",
                  at::toString(mask.scalar_type()), "; bool or uint8 is required.");
    TE_CHECK(mask.dim() == 4 && mask.size(1) == 1 && mask.size(2) == args.queries &&
                 mask.size(3) == input.size(-1),
             op, ": mask has shape ", mask.sizes(), "; [1 or ", args.batch, ", 1, ", args.queries,
             ", ", input.size(-1), "] is required.");
    mask_bytes = contiguous_operand(op, "mask", mask, input);
    args.mask = static_cast<const uint8_t*>(mask_bytes.data_ptr());
    args.mask_batch = mask.size(0);
  }
  softmax_forward(args, context_for(input));
  return output;
}

at::Tensor softmax_gradient(const char* op, const at::Tensor& output_grad,
                            const at::Tensor& softmax_results, float scale) {
  const at::Tensor output = softmax_results.contiguous();
  const at::Tensor grad_output = contiguous_operand(op, "output_grad", output_grad, output);
  const at::Tensor grad_input = new_tensor(output.sizes(), output.scalar_type(), output);
  SoftmaxBackwardArgs args;
  args.grad_output = matrix_view(grad_output);
  args.output = matrix_view(output);
  args.grad_input = matrix_view(grad_input);
  args.scale = scale;
  softmax_backward(args, context_for(output));
  return grad_input;
}

void bind_activation_functions(py::module_& m) {
  for (const auto& activation : kActivations) {
    const ActivationKind kind = activation.kind;
    const std::string name = activation.name;
    m.def(
        name.c_str(),
        [name, kind](const at::Tensor& input, py::object quantizer) {
          return forward({name, kind, {}}, input, std::move(quantizer));
        },
        py::arg("input"), py::arg("quantizer") = py::none(),
        "The activation of input; gated ones halve the last dimension: f(first half) * second.");
    const std::string gradient = "d" + name;
    m.def(
        gradient.c_str(),
        [gradient, kind](const at::Tensor& grad, const at::Tensor& fwd_input,
                         py::object quantizer) {
          return backward({gradient, kind, {}}, {grad, fwd_input}, std::move(quantizer));
        },
        py::arg("grad"), py::arg("fwd_input"), py::arg("quantizer") = py::none(),
        "Gradient of the activation's input, in the shape and type of fwd_input.");
    if (activation.has_fused_bias_gradient) {
      const std::string with_bias = "dbias_" + gradient;
      m.def(
          with_bias.c_str(),
          [with_bias, kind](const at::Tensor& grad, const at::Tensor& fwd_input,
                            py::object quantizer) {
            return backward({with_bias, kind, {}}, {grad, fwd_input, true}, std::move(quantizer));
          },
          py::arg("grad"), py::arg("fwd_input"), py::arg("quantizer") = py::none(),
          "(sum of the gradient over rows, gradient of the activation's input).");
    }
  }
}

void bind_clamped_swiglu(py::module_& m) {
  const ActivationParams defaults;
  m.def(
      "clamped_swiglu",
      [](const at::Tensor& input, py::object quantizer, float limit, float alpha, float offset) {
        return forward({"clamped_swiglu", ActivationKind::kClampedSwiGLU, {limit, alpha, offset}},
                       input, std::move(quantizer));
      },
      py::arg("input"), py::arg("quantizer") = py::none(), py::arg("limit") = defaults.limit,
      py::arg("alpha") = defaults.alpha, py::arg("glu_linear_offset") = defaults.glu_linear_offset,
      "min(a, limit) * sigmoid(alpha * min(a, limit)) * (clamp(b, -limit, limit) + offset).");
  m.def(
      "clamped_dswiglu",
      [](const at::Tensor& grad, const at::Tensor& fwd_input, py::object quantizer, float limit,
         float alpha, float offset) {
        return backward({"clamped_dswiglu", ActivationKind::kClampedSwiGLU, {limit, alpha, offset}},
                        {grad, fwd_input}, std::move(quantizer));
      },
      py::arg("grad"), py::arg("fwd_input"), py::arg("quantizer") = py::none(),
      py::arg("limit") = defaults.limit, py::arg("alpha") = defaults.alpha,
      py::arg("glu_linear_offset") = defaults.glu_linear_offset,
      "Gradient of clamped_swiglu's input.");
}

ActivationParams situglu_params(float beta1, float beta2) {
  ActivationParams params;
  params.beta1 = beta1;
  params.beta2 = beta2;
  return params;
}

void bind_situglu(py::module_& m) {
  const ActivationParams defaults;
  m.def(
      "situglu",
      [](const at::Tensor& input, py::object quantizer, float beta1, float beta2) {
        return forward({"situglu", ActivationKind::kSiTUGLU, situglu_params(beta1, beta2)}, input,
                       std::move(quantizer));
      },
      py::arg("input"), py::arg("quantizer") = py::none(), py::arg("beta1") = defaults.beta1,
      py::arg("beta2") = defaults.beta2,
      "beta1 * tanh(a / beta1) * sigmoid(a) * beta2 * tanh(b / beta2).");
  m.def(
      "dsituglu",
      [](const at::Tensor& grad, const at::Tensor& fwd_input, py::object quantizer, float beta1,
         float beta2) {
        return backward({"dsituglu", ActivationKind::kSiTUGLU, situglu_params(beta1, beta2)},
                        {grad, fwd_input}, std::move(quantizer));
      },
      py::arg("grad"), py::arg("fwd_input"), py::arg("quantizer") = py::none(),
      py::arg("beta1") = defaults.beta1, py::arg("beta2") = defaults.beta2,
      "Gradient of situglu's input.");
}

// The pair of one activation with row scales. `Make` turns the arguments after the quantizer, of
// types Extra and described by `extra`, into an Activation of the given name.
template <typename... Extra, typename Make, typename... Described>
void bind_scaled_pair(py::module_& m, const char* name, const char* gradient, const Make& make,
                      const Described&... extra) {
  m.def(
      name,
      [name, make](const at::Tensor& input, const at::Tensor& act_scales, py::object quantizer,
                   Extra... values) {
        return forward(make(name, values...), input, std::move(quantizer), act_scales);
      },
      py::arg("input"), py::arg("act_scales"), py::arg("quantizer") = py::none(), extra...,
      "The activation of input times act_scales, one per row.");
  m.def(
      gradient,
      [gradient, make](const at::Tensor& grad, const at::Tensor& fwd_input,
                       const at::Tensor& act_scales, py::object quantizer, Extra... values) {
        return backward(make(gradient, values...), {grad, fwd_input, false, act_scales},
                        std::move(quantizer));
      },
      py::arg("grad"), py::arg("fwd_input"), py::arg("act_scales"),
      py::arg("quantizer") = py::none(), extra...,
      "(gradient of the activation's input, gradient of act_scales).");
}

void bind_scaled_activations(py::module_& m) {
  const ActivationParams defaults;
  const auto interleave = py::arg("glu_interleave_size") = 0;
  bind_scaled_pair(m, "scaled_srelu", "scaled_dsrelu",
                   [](const char* name) { return Activation{name, ActivationKind::kSReLU, {}}; });
  bind_scaled_pair<int64_t>(
      m, "scaled_swiglu", "scaled_dswiglu",
      [](const char* name, int64_t interleave_size) {
        return Activation{name, ActivationKind::kSwiGLU, {}, interleave_size};
      },
      interleave);
  bind_scaled_pair<float, float, int64_t>(
      m, "scaled_situglu", "scaled_dsituglu",
      [](const char* name, float beta1, float beta2, int64_t interleave_size) {
        return Activation{name, ActivationKind::kSiTUGLU, situglu_params(beta1, beta2),
                          interleave_size};
      },
      py::arg("beta1") = defaults.beta1, py::arg("beta2") = defaults.beta2, interleave);
  bind_scaled_pair<float, float, float, int64_t>(
      m, "scaled_clamped_swiglu", "scaled_clamped_dswiglu",
      [](const char* name, float limit, float alpha, float offset, int64_t interleave_size) {
        return Activation{
            name, ActivationKind::kClampedSwiGLU, {limit, alpha, offset}, interleave_size};
      },
      py::arg("limit") = defaults.limit, py::arg("alpha") = defaults.alpha,
      py::arg("glu_linear_offset") = defaults.glu_linear_offset, interleave);
}

void bind_softmax(py::module_& m) {
  m.def(
      "scaled_softmax_forward",
      [](const at::Tensor& input, float scale_factor) {
        return softmax({"scaled_softmax_forward", SoftmaxMask::kNone, 4}, input, scale_factor);
      },
      py::arg("input"), py::arg("scale_factor"),
      "softmax(scale_factor * input) over the last dimension of [batch, heads, queries, keys].");
  m.def(
      "scaled_masked_softmax_forward",
      [](const at::Tensor& input, const at::Tensor& mask, float scale_factor) {
        return softmax({"scaled_masked_softmax_forward", SoftmaxMask::kPadding, 4}, input,
                       scale_factor, mask);
      },
      py::arg("input"), py::arg("mask"), py::arg("scale_factor"),
      "The same where mask [1 or batch, 1, queries, keys] (bool or uint8) is 0; 0 elsewhere.");
  m.def(
      "scaled_upper_triang_masked_softmax_forward",
      [](const at::Tensor& input, float scale_factor) {
        return softmax({"scaled_upper_triang_masked_softmax_forward", SoftmaxMask::kCausal, 3},
                       input, scale_factor);
      },
      py::arg("input"), py::arg("scale_factor"),
      "The same on [batch, queries, keys] where key <= query; 0 elsewhere.");
  m.def(
      "scaled_aligned_causal_masked_softmax_forward",
      [](const at::Tensor& input, float scale_factor) {
        return softmax(
            {"scaled_aligned_causal_masked_softmax_forward", SoftmaxMask::kCausalAligned, 4}, input,
            scale_factor);
      },
      py::arg("input"), py::arg("scale_factor"),
      "The same on [batch, heads, queries, keys] where key <= query + keys - queries; 0 "
      "elsewhere.");
  for (const char* name : {"scaled_softmax_backward", "scaled_masked_softmax_backward",
                           "scaled_upper_triang_masked_softmax_backward",
                           "scaled_aligned_causal_masked_softmax_backward"}) {
    m.def(
        name,
        [name](const at::Tensor& output_grad, const at::Tensor& softmax_results,
               float scale_factor) {
          return softmax_gradient(name, output_grad, softmax_results, scale_factor);
        },
        py::arg("output_grad"), py::arg("softmax_results"), py::arg("scale_factor"),
        "scale_factor * (output_grad - sum(output_grad * softmax_results)) * softmax_results.");
  }
}

}  // namespace

void bind_activation(py::module_& m) {
  bind_activation_functions(m);
  bind_clamped_swiglu(m);
  bind_situglu(m);
  bind_scaled_activations(m);
  m.def("bgrad_quantize", &quantize_with_bias_gradient, py::arg("input"),
        py::arg("quantizer") = py::none(),
        "(sum of input over rows, quantized input); the input itself without a quantizer.");
  bind_softmax(m);
}

}  // namespace transformer_engine::pytorch
