// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include <algorithm>

#include "quantizer.h"
#include "steps/node_support.h"

#include "steps/python_call.h"
#include "steps/read_operand.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {
PyObject* quantized_tensor_factory = nullptr;
}

void EdgeList::add(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.requires_grad()) {
    requires_grad_ = true;
    edges_.push_back(torch::autograd::impl::gradient_edge(tensor));
  } else {
    edges_.emplace_back();
  }
}

bool EdgeList::are_recorded() const {
  return requires_grad_ && at::GradMode::is_enabled() &&
         !c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
}

void attach_output(const at::Tensor& output, const NodePtr<torch::autograd::Node>& node) {
  torch::autograd::set_history(output, node);
}

torch::autograd::variable_list once_differentiable(const torch::autograd::Node& node,
                                                   const torch::autograd::variable_list& incoming,
                                                   torch::autograd::variable_list gradients) {
  if (!at::GradMode::is_enabled()) {
    return gradients;
  }
  torch::autograd::edge_list edges = node.next_edges();
  for (const at::Tensor& gradient : incoming) {
    if (gradient.defined() && gradient.requires_grad()) {
      edges.push_back(torch::autograd::impl::gradient_edge(gradient));
    }
  }
  const auto error = new_node<torch::autograd::Error>(
      concat(node.name(),
             ": trying to differentiate twice a function that is differentiable once; a native "
             "backward has no derivative. Use torch.func (outside quantized regions), or leave the "
             "module out of the second derivative."),
      std::move(edges));
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined()) {
      // An alias: the tensor itself may be a buffer that others hold.
      gradient = gradient.detach();
      torch::autograd::set_history(gradient, error);
    }
  }
  return gradients;
}

void refuse_transformed(const std::string& name, const torch::autograd::variable_list& incoming) {
  for (const at::Tensor& gradient : incoming) {
    if (!gradient.defined()) {
      continue;
    }
    const bool is_wrapped = gradient.key_set().has_any(
        c10::DispatchKeySet({c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
                             c10::DispatchKey::FuncTorchGradWrapper}));
    // torch's own macro: its exception keeps its type on the way through the autograd engine.
    TORCH_CHECK_NOT_IMPLEMENTED(
        !is_wrapped && !has_tangent(gradient), name, ": the gradient ",
        is_wrapped ? "is a wrapper of a transform (vmap, for example is_grads_batched=True or "
                     "vectorize=True)"
                   : "has a forward-mode tangent",
        "; a backward of a forward outside transforms takes plain tensors. Put the transform "
        "around the forward too (torch.func), or loop.");
  }
}

bool is_without_gradient(const torch::autograd::variable_list& incoming) {
  return std::none_of(incoming.begin(), incoming.end(),
                      [](const at::Tensor& gradient) { return gradient.defined(); });
}

void ParameterRule::check(const std::string& label, const at::Tensor& parameter,
                          const Name& name) const {
  TE_CHECK_AS(RuntimeError, parameter.device() == device, label, ": parameter ", name.text(),
              " is on ", parameter.device().str(), " and the input on ", device.str(),
              "; they must be on one device. Move one of them",
              parameter.is_meta() ? ", or call reset_parameters() of a module built on meta."
                                  : " with .to().");
  TE_CHECK_TYPE(!dtype.has_value() || parameter.scalar_type() == *dtype, label, ": parameter ",
                name.text(), " has dtype ", at::toString(parameter.scalar_type()),
                " and the input ", at::toString(*dtype),
                "; they must be equal. Cast one of them, or use torch.autocast.");
}

std::optional<at::ScalarType> amp_dtype(const at::Tensor& tensor) {
  const auto type = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(type)) {
    return std::nullopt;
  }
  return at::autocast::get_autocast_dtype(type);
}

void check_input_kind(const std::string& label, const char* what, const at::Tensor& input) {
  const at::ScalarType type = input.scalar_type();
  TE_CHECK_TYPE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, label, ": ", what,
                " has dtype ", at::toString(type),
                "; float32, float16 or bfloat16 is required. Cast it first.");
  TE_CHECK_AS(RuntimeError, input.is_cpu() || input.is_cuda(), label, ": ", what, " is on ",
              input.device().str(),
              "; a tensor with data on the CPU or CUDA is required. Move it, or make it, there.");
}

void check_input(const std::string& label, const at::Tensor& input, int64_t features,
                 const char* features_name) {
  check_input_kind(label, "inp", input);
  TE_CHECK(input.dim() >= 1 && input.size(-1) == features, label, ": inp has shape ", input.sizes(),
           "; a last dimension of ", features, " (", features_name, ") is required.");
}

PyObject* assemble_outputs(ReturnedTensors tensors) {
  auto output = py::reinterpret_steal<py::object>(wrap_tensor(std::move(tensors.output)));
  if (!tensors.with_bias && !tensors.with_layernorm_output) {
    return output.release().ptr();
  }
  py::list parts;
  parts.append(output);
  if (tensors.with_bias) {
    if (!tensors.bias.defined() && tensors.empty_bias) {
      tensors.bias = at::empty({0});
    }
    parts.append(tensors.bias.defined()
                     ? py::reinterpret_steal<py::object>(wrap_tensor(tensors.bias))
                     : py::none());
  }
  if (tensors.with_layernorm_output) {
    parts.append(
        py::reinterpret_steal<py::object>(wrap_tensor(std::move(tensors.layernorm_output))));
  }
  return py::tuple(parts).release().ptr();
}

at::Tensor make_quantized_tensor(const at::Tensor& tensor, at::IntArrayRef sizes,
                                 at::ScalarType dtype,
                                 const std::shared_ptr<Quantizer>& quantizer) {
  const py::gil_scoped_acquire gil;
  TE_CHECK_AS(RuntimeError, quantized_tensor_factory != nullptr,
              "quantized output: no tensor factory is registered; import "
              "transformer_engine.pytorch first.");
  const at::Tensor input = tensor.view(sizes);
  py::object quantized;
  if (const auto* const in_python = dynamic_cast<const PythonQuantizer*>(quantizer.get())) {
    quantized = py::handle(in_python->object()).attr("quantize_impl")(input);
  } else {
    const Operand operand = quantizer->quantize_for_user(input);
    quantized = py::handle(quantized_tensor_factory)(
        copy_parts(operand.rowwise), py::cast(std::vector<int64_t>(sizes.begin(), sizes.end())),
        dtype, quantizer);
  }
  return unpack_tensor(quantized.ptr(), "quantized tensor factory");
}

void set_quantized_tensor_factory(PyObject* factory) {
  Py_XINCREF(factory);
  std::swap(quantized_tensor_factory, factory);
  Py_XDECREF(factory);
}

}  // namespace transformer_engine::pytorch
