// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/linear_part.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/activation.h>
#include <transformer_engine/error.h>

#include "steps/node_support.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

// True when the parts are one contiguous block of one storage, in order.
bool are_adjacent(const TensorList& parts) {
  const at::Tensor& first = parts[0];
  int64_t offset = first.storage_offset();
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous() || part.dim() != first.dim() ||
        part.scalar_type() != first.scalar_type() ||
        part.storage().unsafeGetStorageImpl() != first.storage().unsafeGetStorageImpl() ||
        part.storage_offset() != offset) {
      return false;
    }
    offset += part.numel();
  }
  return true;
}

int64_t rows_of(const at::Tensor& tensor) {
  const int64_t cols = tensor.dim() == 0 ? 1 : tensor.size(-1);
  return cols == 0 ? tensor.numel() : tensor.numel() / cols;
}

// A possibly missing attribute of a weight (GIL held).
py::object attribute_or_none(const at::Tensor& weight, const char* name) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(weight));
  return py::getattr(object, name, py::none());
}

at::Tensor main_grad_of(const at::Tensor& weight) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(weight));
  const py::object grad = py::hasattr(object, "__fsdp_param__")
                              ? object.attr("get_main_grad")()
                              : py::getattr(object, "main_grad", py::none());
  TE_CHECK_AS(RuntimeError, !grad.is_none(), "wgrad: weight of shape ", weight.sizes(),
              " has no main_grad; fuse_wgrad_accumulation=True needs one. Set weight.main_grad "
              "before backward.");
  return unpack_tensor(grad.ptr(), "main_grad");
}

// What autograd gets for a weight whose gradient went into main_grad.
at::Tensor placeholder_gradient(const at::Tensor& weight) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(weight));
  if (!py::hasattr(object, "grad_added_to_main_grad")) {
    return {};
  }
  object.attr("grad_added_to_main_grad") = true;
  const bool zero = truth(py::object(py::getattr(object, "zero_out_wgrad", py::none())).ptr());
  static PyObject* const get_dummy_wgrad =
      py::object(
          py::module_::import("transformer_engine.pytorch.module.base").attr("get_dummy_wgrad"))
          .release()
          .ptr();
  const py::object dummy = py::handle(get_dummy_wgrad)(
      py::cast(std::vector<int64_t>(weight.sizes().begin(), weight.sizes().end())),
      weight.scalar_type(), py::arg("zero") = zero);
  return unpack_tensor(dummy.ptr(), "get_dummy_wgrad()");
}

void accumulate_into_main_grad(const WgradTask& task) {
  struct Target {
    at::Tensor main_grad;
    bool overwrites;
  };
  c10::SmallVector<Target, 3> targets;
  {
    const py::gil_scoped_acquire gil;
    for (const at::Tensor& weight : task.weights) {
      const py::object overwrite = attribute_or_none(weight, "overwrite_main_grad");
      targets.push_back(
          {main_grad_of(weight), task.overwrites_main_grad || truth(overwrite.ptr())});
      TE_CHECK(targets.back().main_grad.numel() == weight.numel(), "wgrad: main_grad has shape ",
               targets.back().main_grad.sizes(), "; the weight's shape ", weight.sizes(),
               " is required.");
    }
  }
  const GemmFlags transposed{.a_is_transposed = true, .b_is_transposed = true, .accumulate = false};
  if (targets.size() == 1 && targets[0].main_grad.is_contiguous()) {
    GemmFlags flags = transposed;
    flags.accumulate = !targets[0].overwrites;
    run_gemm(task.grad_output, task.input, flags, {},
             targets[0].main_grad.view(task.weights[0].sizes()));
    return;
  }
  const at::Tensor whole = at::empty({task.grad_output.data.size(-1), task.input.data.size(-1)},
                                     targets[0].main_grad.options());
  run_gemm(task.grad_output, task.input, transposed, {}, whole);
  int64_t row = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor part =
        whole.narrow(0, row, task.weights[i].size(0)).view(targets[i].main_grad.sizes());
    row += task.weights[i].size(0);
    targets[i].overwrites ? targets[i].main_grad.copy_(part) : targets[i].main_grad.add_(part);
  }
}

}  // namespace

at::Tensor concatenate(const TensorList& parts) {
  if (parts.empty()) {
    return {};
  }
  if (parts.size() == 1) {
    return parts[0].is_contiguous() ? parts[0] : parts[0].contiguous();
  }
  if (!are_adjacent(parts)) {
    return at::cat(at::TensorList(parts.data(), parts.size()), 0);
  }
  int64_t rows = 0;
  for (const at::Tensor& part : parts) {
    rows += part.size(0);
  }
  c10::SmallVector<int64_t, 2> sizes(parts[0].sizes().begin(), parts[0].sizes().end());
  sizes[0] = rows;
  return at::as_strided(parts[0], sizes, parts[0].strides());
}

at::Tensor as_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2
             ? tensor
             : tensor.view({rows_of(tensor), tensor.dim() == 0 ? 1 : tensor.size(-1)});
}

at::Tensor as_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return !tensor.defined() || tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

Operand read_quantized(const at::Tensor& tensor, const char* what) {
  static const Name native_operand("_native_operand");
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  const auto method =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), native_operand.object()));
  if (!method) {
    PyErr_Clear();
    throw NotImplementedError(
        concat(what, " is a ", Py_TYPE(object.ptr())->tp_name,
               "; a plain tensor or a quantized tensor is required. Convert it first."));
  }
  const py::tuple parts = method();
  Operand operand;
  operand.data = unpack_tensor(py::object(parts[0]).ptr(), what);
  operand.scale_inv = unpack_tensor(py::object(parts[1]).ptr(), what);
  operand.dtype = static_cast<DType>(py::cast<int>(parts[2]));
  return operand;
}

at::Tensor dequantize_python(const at::Tensor& tensor, at::ScalarType dtype) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  const py::object plain = object.attr("dequantize")();
  return as_dtype(unpack_tensor(plain.ptr(), "dequantize()"), dtype);
}

LinearParameters LinearPart::read_parameters(PyObject* module,
                                             std::optional<at::ScalarType> required) const {
  LinearParameters parameters;
  int64_t rows = 0;
  const auto check = [&](const at::Tensor& tensor, const Name& name) {
    TE_CHECK_TYPE(!required.has_value() || tensor.scalar_type() == *required, spec_.label,
                  ": parameter ", name.text(), " has dtype ", at::toString(tensor.scalar_type()),
                  " and the input ", at::toString(*required),
                  "; they must be equal. Cast one of them, or use torch.autocast.");
  };
  for (const Name& name : spec_.weight_names) {
    parameters.weights.push_back(read_tensor(module, name));
    const at::Tensor& weight = parameters.weights.back();
    TE_CHECK(weight.defined() && weight.dim() == 2 && weight.size(1) == spec_.in_features,
             spec_.label, ": parameter ", name.text(), " has shape ",
             weight.defined() ? weight.sizes() : at::IntArrayRef(), "; [rows, ", spec_.in_features,
             "] is required.");
    check(weight, name);
    rows += weight.size(0);
    parameters.weight_requires_grad |= weight.requires_grad();
  }
  TE_CHECK(rows == spec_.out_features, spec_.label, ": the weights have ", rows, " rows together; ",
           spec_.out_features, " are required.");
  for (const Name& name : spec_.bias_names) {
    at::Tensor bias = read_tensor(module, name);
    if (!bias.defined() || bias.numel() == 0) {
      parameters.biases.clear();
      break;
    }
    check(bias, name);
    parameters.bias_requires_grad |= bias.requires_grad();
    parameters.biases.push_back(std::move(bias));
  }
  return parameters;
}

Operand LinearPart::weight_operand(const CallState& state, const LinearParameters& parameters,
                                   std::optional<bool> is_first_microbatch, at::ScalarType dtype) {
  const at::Tensor& first = parameters.weights[0];
  if (is_python_tensor(first)) {
    const py::gil_scoped_acquire gil;
    return state.is_quantized ? read_quantized(first, spec_.label.c_str())
                              : Operand::high_precision(dequantize_python(first, dtype));
  }
  if (!state.is_quantized) {
    return Operand::high_precision(as_dtype(concatenate(parameters.weights), dtype));
  }
  Quantizer& quantizer = state.quantizers->weight(spec_.gemm);
  if (!is_first_microbatch.has_value()) {
    return quantizer.quantize(concatenate(parameters.weights));
  }
  uint32_t version = 0;  // any write to any part changes the sum
  for (const at::Tensor& weight : parameters.weights) {
    version += weight.is_inference() ? 0 : static_cast<uint32_t>(weight._version());
  }
  const bool is_fresh = cache_.operand.is_defined() &&
                        cache_.quantizers == state.quantizers.get() &&
                        cache_.data == first.data_ptr() && cache_.version == version;
  if (*is_first_microbatch || !is_fresh) {
    cache_ = {.operand = quantizer.quantize(concatenate(parameters.weights)),
              .quantizers = state.quantizers.get(),
              .data = first.data_ptr(),
              .version = version};
  }
  return cache_.operand;
}

void run_gemm(const Operand& a, const Operand& b, const GemmFlags& flags, const at::Tensor& bias,
              const at::Tensor& d) {
  GemmArgs args;
  args.a = a.gemm_operand(flags.a_is_transposed);
  args.b = b.gemm_operand(flags.b_is_transposed);
  args.bias = vector_view(bias);
  args.d = matrix_view(d);
  args.accumulate = flags.accumulate;
  gemm(args, context_for(d));
}

at::Tensor fprop(const Operand& input, const Operand& weight, const at::Tensor& bias,
                 at::ScalarType dtype) {
  at::Tensor d = at::empty({rows_of(input.data), weight.data.size(0)},
                           at::TensorOptions().dtype(dtype).device(input.data.device()));
  run_gemm(input, weight, {}, bias, d);
  return d;
}

at::Tensor dgrad(const Operand& grad_output, const Operand& weight, at::ScalarType dtype,
                 const at::Tensor& addend) {
  const bool adds = addend.defined() && addend.scalar_type() == dtype;
  at::Tensor d =
      adds ? addend.contiguous()
           : at::empty({rows_of(grad_output.data), weight.data.size(1)},
                       at::TensorOptions().dtype(dtype).device(grad_output.data.device()));
  run_gemm(grad_output, weight, {.b_is_transposed = true, .accumulate = adds}, {}, d);
  return d;
}

Operand prepare_grad_output(const CallState& state, int gemm, const at::Tensor& grad_output,
                            bool needs_operand, at::Tensor* grad_bias) {
  Operand operand = Operand::high_precision(grad_output);
  BiasGradientArgs bias_args;
  const bool quantizes = state.is_quantized && needs_operand;
  if (quantizes) {
    Quantizer& quantizer = state.quantizers->grad_output(gemm);
    operand = quantizer.make_operand(grad_output.sizes(), grad_output.device());
    const Quantizer::Destination destination{
        .data = operand.data, .transpose = {}, .scale_inv = operand.scale_inv};
    if (grad_bias == nullptr || !quantizer.fused_output(destination, &bias_args.quantized)) {
      quantizer.update(grad_output, destination);
    }
  }
  if (grad_bias != nullptr) {
    bias_args.grad_output = matrix_view(grad_output);
    bias_args.grad_bias = vector_view(*grad_bias);
    bias_gradient(bias_args, context_for(grad_output));
  }
  return operand;
}

TensorList run_wgrad(const WgradTask& task, bool fuse) {
  TensorList gradients;
  if (fuse) {
    accumulate_into_main_grad(task);
    const py::gil_scoped_acquire gil;
    for (const at::Tensor& weight : task.weights) {
      gradients.push_back(placeholder_gradient(weight));
    }
    return gradients;
  }
  const at::Tensor whole = at::empty(
      {task.grad_output.data.size(-1), task.input.data.size(-1)},
      at::TensorOptions().dtype(task.weights[0].scalar_type()).device(task.input.data.device()));
  run_gemm(task.grad_output, task.input, {.a_is_transposed = true, .b_is_transposed = true}, {},
           whole);
  if (task.weights.size() == 1) {
    gradients.push_back(whole);
    return gradients;
  }
  int64_t row = 0;
  for (const at::Tensor& weight : task.weights) {
    gradients.push_back(whole.narrow(0, row, weight.size(0)));
    row += weight.size(0);
  }
  return gradients;
}

std::pair<TensorList, TensorList> run_delayed_wgrad(LinearPart& linear) {
  auto& tasks = linear.wgrad_store().tasks;
  TE_CHECK_AS(RuntimeError, !tasks.empty(), linear.spec().label,
              ": backward_dw found no delayed weight gradient; run forward and backward once for "
              "each backward_dw.");
  const WgradTask task = std::move(tasks.front());
  tasks.pop_front();
  const PlainOperators plain;
  return {run_wgrad(task, linear.spec().fuse_wgrad_accumulation), task.weights};
}

void SavedLinear::save_weight(const Operand& operand, const LinearParameters& parameters,
                              bool needs_dgrad, at::ScalarType dtype) {
  weight_is_parameter = needs_dgrad && !operand.is_quantized() &&
                        !is_python_tensor(parameters.weights[0]) &&
                        parameters.weights[0].scalar_type() == dtype;
  if (needs_dgrad && !weight_is_parameter) {
    weight.save(operand);
  }
  if (weight_is_parameter) {
    weights.reserve(parameters.weights.size());
    for (const at::Tensor& parameter : parameters.weights) {
      weights.emplace_back(parameter, false);
    }
  }
  if (parameters.weight_requires_grad) {
    targets = parameters.weights;
  }
}

Operand SavedLinear::unpack_weight(torch::autograd::Node* node) const {
  if (!weight_is_parameter) {
    return weight.unpack(node);
  }
  TensorList parameters;
  for (const auto& saved : weights) {
    parameters.push_back(unpack_saved(saved));
  }
  return Operand::high_precision(concatenate(parameters));
}

void SavedLinear::reset() {
  input.reset();
  weight.reset();
  for (auto& saved : weights) {
    saved.reset_data();
  }
}

}  // namespace transformer_engine::pytorch
