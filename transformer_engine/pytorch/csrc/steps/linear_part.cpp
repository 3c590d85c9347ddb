// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/linear_part.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/activation.h>
#include <transformer_engine/error.h>

#include "allocate.h"
#include "steps/node_support.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

// "Linear.backward" for "Linear.forward".
std::string backward_label(const LinearSpec& spec) {
  return concat(spec.label.substr(0, spec.label.rfind('.')), ".backward");
}

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

// Product of the leading dimensions; also where the last one is 0.
int64_t rows_of(const at::Tensor& tensor) {
  int64_t rows = 1;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    rows *= tensor.size(dim);
  }
  return rows;
}

// A possibly missing attribute of a weight (GIL held).
py::object attribute_or_none(const at::Tensor& weight, const char* name) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(weight));
  return py::getattr(object, name, py::none());
}

// The buffer that weight number `index` of a layer adds its gradient to (GIL held).
at::Tensor main_grad_of(const LinearSpec& spec, size_t index, const at::Tensor& weight) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(weight));
  const py::object grad = py::hasattr(object, "__fsdp_param__")
                              ? object.attr("get_main_grad")()
                              : py::getattr(object, "main_grad", py::none());
  const auto who = [&] {
    return concat(backward_label(spec), ": ", spec.weight_names[index].text(), ".main_grad");
  };
  TE_CHECK_AS(RuntimeError, !grad.is_none(), who(),
              " is missing; fuse_wgrad_accumulation=True needs one. Set it before backward.");
  TE_CHECK_TYPE(THPVariable_Check(grad.ptr()), who(), " has type ", Py_TYPE(grad.ptr())->tp_name,
                "; a tensor is required.");
  const at::Tensor& main_grad = THPVariable_Unpack(grad.ptr());
  const at::ScalarType dtype = main_grad.scalar_type();
  TE_CHECK_TYPE((dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) &&
                    main_grad.layout() == at::kStrided && !is_python_tensor(main_grad),
                who(), " has dtype ", at::toString(dtype), " and layout ", main_grad.layout(),
                "; a plain tensor of float32, bfloat16 or float16 is required.");
  TE_CHECK(main_grad.device() == weight.device(), who(), " is on ", main_grad.device().str(), "; ",
           weight.device().str(), " is required, where the weight is.");
  TE_CHECK(main_grad.numel() == weight.numel(), who(), " has shape ", main_grad.sizes(),
           "; the weight's shape ", weight.sizes(), " is required.");
  return main_grad;
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

void accumulate_into_main_grad(const WgradTask& task, const LinearSpec& spec) {
  struct Target {
    at::Tensor main_grad;  // undefined for a frozen slice
    bool overwrites = false;
  };
  c10::SmallVector<Target, 3> targets;
  {
    const py::gil_scoped_acquire gil;
    const bool is_first_write =
        task.first_microbatch != nullptr && !task.first_microbatch->was_written;
    for (size_t i = 0; i < task.weights.size(); ++i) {
      const at::Tensor& weight = task.weights[i];
      if (!weight.requires_grad()) {
        targets.emplace_back();
        continue;
      }
      const py::object overwrite = attribute_or_none(weight, "overwrite_main_grad");
      targets.push_back({main_grad_of(spec, i, weight), is_first_write || truth(overwrite.ptr())});
    }
    if (task.first_microbatch != nullptr) {
      task.first_microbatch->was_written = true;
    }
  }
  const GemmFlags transposed{
      .a_is_transposed = true, .b_is_transposed = true, .is_fast = task.is_fast};
  if (targets.size() == 1 && targets[0].main_grad.is_contiguous()) {
    GemmFlags flags = transposed;
    flags.accumulate = !targets[0].overwrites;
    run_gemm(task.grad_output, task.input, flags, {},
             targets[0].main_grad.view(task.weights[0].sizes()));
    return;
  }
  // Slices may be added to buffers of several dtypes: their sum is rounded once, from FP32.
  const at::Tensor whole = new_tensor({task.grad_output.sizes.cols, task.input.sizes.cols},
                                      at::kFloat, task.input.anchor());
  run_gemm(task.grad_output, task.input, transposed, {}, whole);
  int64_t row = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t begin = row;
    row += task.weights[i].size(0);
    const at::Tensor& main_grad = targets[i].main_grad;
    if (!main_grad.defined()) {
      continue;
    }
    const at::Tensor part = whole.narrow(0, begin, row - begin).view(main_grad.sizes());
    if (!targets[i].overwrites) {
      part.add_(main_grad);
    }
    main_grad.copy_(part);
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

at::Tensor differentiable_concatenate(const TensorList& parts) {
  return parts.size() > 1 && at::GradMode::is_enabled()
             ? at::cat(at::TensorList(parts.data(), parts.size()), 0)
             : concatenate(parts);
}

at::Tensor as_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2
             ? tensor
             : tensor.view({rows_of(tensor), tensor.dim() == 0 ? 1 : tensor.size(-1)});
}

at::Tensor as_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return !tensor.defined() || tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

at::Tensor as_plain(const at::Tensor& tensor) {
  return is_python_tensor(tensor)
             ? with_gil([&] { return dequantize_python(tensor, tensor.scalar_type()); })
         : tensor.is_neg() ? tensor.resolve_neg().contiguous()
                           : tensor.contiguous();
}

at::Tensor gradient_matrix(const at::Tensor& gradient, at::ScalarType dtype) {
  return gradient.defined() ? as_matrix(as_dtype(as_plain(gradient), dtype)) : gradient;
}

std::optional<bool> read_is_first_microbatch(PyObject* value, const std::string& label) {
  if (value != nullptr && value != Py_None && value != Py_True && value != Py_False) {
    TE_CHECK_TYPE(!PySequence_Check(value) && !PyMapping_Check(value) && !PyFloat_Check(value) &&
                      !PyCallable_Check(value),
                  label, ": is_first_microbatch is ",
                  py::cast<std::string>(py::repr(py::handle(value))), " of type ",
                  Py_TYPE(value)->tp_name,
                  "; True, False or None is required. Pass None to cache "
                  "no quantized weight.");
  }
  return optional_truth(value);
}

Operand read_quantized(const at::Tensor& tensor, at::ScalarType dtype, const OperandOwner& owner) {
  const py::gil_scoped_acquire gil;
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  Operand operand = read_operand(object, tensor.sizes(), tensor.device(), owner);
  operand.convert_plain_copies(dtype);
  return operand;
}

Usages input_usages(const CallState& state, bool needs_wgrad) {
  return {.rowwise = true, .columnwise = needs_wgrad && state.quantizes_backward()};
}

void complete_operand(Operand* operand, const Usages& usages, Quantizer& quantizer,
                      at::ScalarType dtype) {
  const CopyFormat& held =
      operand->is_rowwise_held() ? operand->rowwise.format : operand->columnwise.format;
  if (held.kind != quantizer.copy_kind().value_or(held.kind)) {
    *operand = quantizer.quantize(dequantize(*operand, dtype), usages);
    return;
  }
  const bool is_transformed_alike =
      operand->columnwise.format.has(CopyFormat::kHadamard) == quantizer.transforms_columns() ||
      !quantizer.copy_kind().has_value();
  const bool lacks_columnwise =
      usages.columnwise && !(operand->can_contract_rows() && is_transformed_alike);
  const bool lacks_rowwise = usages.rowwise && !operand->can_contract_columns();
  if (!lacks_columnwise && !lacks_rowwise) {
    return;
  }
  Operand made = quantizer.quantize(dequantize(*operand, dtype),
                                    {.rowwise = lacks_rowwise, .columnwise = lacks_columnwise});
  if (lacks_rowwise) {
    operand->rowwise = std::move(made.rowwise);
  }
  if (lacks_columnwise) {
    operand->columnwise = std::move(made.columnwise);
  }
}

at::Tensor dequantize_python(const at::Tensor& tensor, at::ScalarType dtype) {
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  const py::object plain = object.attr("dequantize")();
  const at::Tensor& values = unpack_tensor(plain.ptr(), "dequantize()");
  // Any tensor class has the method; only that of a quantized one gives data that a kernel can
  // read.
  TE_CHECK_TYPE(!is_python_tensor(values), "dequantize: the tensor is a ",
                Py_TYPE(object.ptr())->tp_name,
                "; a plain tensor or a quantized tensor is required. Convert it first.");
  return as_dtype(values, dtype);
}

LinearParameters LinearPart::read_parameters(PyObject* module,
                                             const ParameterRule& required) const {
  LinearParameters parameters;
  int64_t rows = 0;
  int64_t bias_numel = 0;
  for (const Name& name : spec_.weight_names) {
    parameters.weights.push_back(read_tensor(module, name, spec_.label));
    const at::Tensor& weight = parameters.weights.back();
    TE_CHECK(weight.defined(), spec_.label, ": parameter ", name.text(),
             " is None; a tensor of shape [rows, ", spec_.in_features, "] is required.");
    TE_CHECK(weight.dim() == 2 && weight.size(1) == spec_.in_features, spec_.label, ": parameter ",
             name.text(), " has shape ", weight.sizes(), "; [rows, ", spec_.in_features,
             "] is required.");
    required.check(spec_.label, weight, name);
    rows += weight.size(0);
    parameters.weight_requires_grad |= weight.requires_grad();
  }
  TE_CHECK(rows == spec_.out_features, spec_.label, ": the weights have ", rows, " rows together; ",
           spec_.out_features, " are required.");
  for (size_t i = 0; i < spec_.bias_names.size(); ++i) {
    const Name& name = spec_.bias_names[i];
    at::Tensor bias = read_tensor(module, name, spec_.label);
    if (!bias.defined() || (bias.numel() == 0 && parameters.weights[i].size(0) != 0)) {
      parameters.biases.clear();
      bias_numel = 0;
      break;
    }
    required.check(spec_.label, bias, name);
    parameters.bias_requires_grad |= bias.requires_grad();
    bias_numel += bias.numel();
    parameters.biases.push_back(std::move(bias));
  }
  TE_CHECK(parameters.biases.empty() || bias_numel == spec_.out_features, spec_.label,
           ": the biases have ", bias_numel, " elements together; ", spec_.out_features,
           " are required.");
  return parameters;
}

namespace {

// Whether a quantized parameter without a columnwise copy may have one by the backward: where its
// quantizer makes one. fully_shard gathers rows for the forward and columns for the backward.
bool gets_columns_later(const at::Tensor& weight) {
  static const Name quantizer("_quantizer");
  static const Name columnwise_usage("columnwise_usage");
  const py::gil_scoped_acquire gil;
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(weight));
  const py::object made_by = object.attr(quantizer.object());
  return !made_by.is_none() && made_by.attr(columnwise_usage.object()).cast<bool>();
}

}  // namespace

Operand LinearPart::quantized_parameter(const CallState& state, const at::Tensor& weight,
                                        const WeightRequest& request) {
  const std::string& name = spec_.weight_names[0].text();
  if (!state.is_quantized) {
    const py::gil_scoped_acquire gil;
    if (!was_told_of_dequantizing_) {
      was_told_of_dequantizing_ = true;
      const std::string text = concat(spec_.label, ": ", name,
                                      " is quantized and the call outside a quantized region; it "
                                      "is dequantized for each call. Use te.autocast.");
      if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) < 0) {
        throw py::error_already_set();
      }
    }
    return Operand::high_precision(dequantize_python(weight, request.dtype));
  }
  Operand operand = read_quantized(weight, request.dtype, {spec_.label, name.c_str()});
  TE_CHECK_AS(RuntimeError, operand.can_contract_columns(), spec_.label, ": ", name,
              " has no rowwise copy, which forward reads. Call its update_usage, or quantize it "
              "with rowwise usage.");
  TE_CHECK_AS(RuntimeError,
              operand.can_contract_rows() || !request.needs_dgrad || !state.quantizes_backward() ||
                  gets_columns_later(weight),
              spec_.label, ": ", name,
              " has no columnwise copy, which the gradient of the input reads. Quantize it with "
              "columnwise usage.");
  return operand;
}

namespace {

at::Tensor skip_flag(const CallState& state) {
  return state.is_graph ? skip_weight_update() : at::Tensor();
}

}  // namespace

Operand LinearPart::captured_weight(const CallState& state, const LinearParameters& parameters,
                                    const Usages& usages, const at::Tensor& skip) {
  TE_CHECK_AS(RuntimeError, skip.device() == parameters.weights[0].device(), spec_.label,
              ": the flag of set_skip_fp8_weight_update_tensor is on ", skip.device().str(),
              " and the weight on ", parameters.weights[0].device().str(),
              "; one device is required. Capture with that device current.");
  const std::lock_guard<std::mutex> lock(mutex_);
  Quantizer& quantizer = state.quantizers->weight(spec_.gemm);
  Operand& operand = captured_.operand;
  if (!operand.is_defined() || captured_.quantizers != state.quantizers ||
      (usages.columnwise && !operand.can_contract_rows())) {
    // Without the flag: if this is recorded, no replay may leave the memory as it was.
    operand = quantizer.quantize(concatenate(parameters.weights), usages);
    captured_.quantizers = state.quantizers;
    return operand;
  }
  return quantizer.requantize(concatenate(parameters.weights), &operand, skip) ? operand
                                                                               : Operand{};
}

Operand LinearPart::take_captured_weight() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(captured_, WeightCache{}).operand;
}

Operand LinearPart::weight_operand(const CallState& state, const LinearParameters& parameters,
                                   const WeightRequest& request) {
  const at::Tensor& first = parameters.weights[0];
  if (is_python_tensor(first)) {
    return quantized_parameter(state, first, request);
  }
  if (!state.is_quantized) {
    return Operand::high_precision(as_dtype(concatenate(parameters.weights), request.dtype));
  }
  Quantizer& quantizer = state.quantizers->weight(spec_.gemm);
  const Usages usages{.rowwise = true,
                      .columnwise = request.needs_dgrad && state.quantizes_backward()};
  if (const at::Tensor skip = skip_flag(state); skip.defined()) {
    if (Operand operand = captured_weight(state, parameters, usages, skip); operand.is_defined()) {
      return operand;
    }
  }
  if (!request.is_first_microbatch.has_value()) {
    return quantizer.quantize(concatenate(parameters.weights), usages);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (*request.is_first_microbatch || !cache_.is_fresh(state, parameters, usages)) {
    cache_.operand = quantizer.quantize(concatenate(parameters.weights), usages);
    cache_.quantizers = state.quantizers;
    cache_.sources.clear();
    for (const at::Tensor& weight : parameters.weights) {
      cache_.sources.emplace_back(weight);
    }
  }
  return cache_.operand;
}

LinearPart::WeightSource::WeightSource(const at::Tensor& weight)
    : storage(weight.storage().getWeakStorageImpl()),
      data(weight.const_data_ptr()),
      version(weight.is_inference() ? 0 : static_cast<uint32_t>(weight._version())) {}

bool LinearPart::WeightCache::is_fresh(const CallState& state, const LinearParameters& parameters,
                                       const Usages& usages) const {
  if (!operand.is_defined() || quantizers != state.quantizers ||
      sources.size() != parameters.weights.size() ||
      (usages.columnwise && !operand.can_contract_rows())) {
    return false;
  }
  // What was made in inference mode cannot be saved for a backward.
  if (operand.anchor().is_inference() && !c10::InferenceMode::is_enabled()) {
    return false;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const WeightSource now(parameters.weights[i]);
    // A weak reference keeps the storage's address from being given to another storage.
    if (now.storage._unsafe_get_target() != sources[i].storage._unsafe_get_target() ||
        now.data != sources[i].data || now.version != sources[i].version) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<FirstMicrobatch> LinearPart::first_microbatch(const CallState& state,
                                                              std::optional<bool> is_first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_first.value_or(false) || skip_flag(state).defined()) {
    first_microbatch_ = nullptr;
  } else if (first_microbatch_ == nullptr || first_microbatch_->was_written) {
    first_microbatch_ = std::make_shared<FirstMicrobatch>();
  }
  return first_microbatch_;
}

void run_gemm(const Operand& a, const Operand& b, const GemmFlags& flags, const at::Tensor& bias,
              const at::Tensor& d) {
  if (flags.a_is_transposed && flags.b_is_transposed) {
    check_same_transform(a, b);
  }
  GemmArgs args;
  args.a = a.gemm_operand(flags.a_is_transposed);
  args.b = b.gemm_operand(flags.b_is_transposed);
  args.bias = vector_view(bias);
  args.d = matrix_view(d);
  args.accumulate = flags.accumulate;
  args.allows_fast_accumulation = flags.is_fast;
  gemm(args, context_for(d));
}

at::Tensor fprop(const Operand& input, const Operand& weight, const at::Tensor& bias,
                 at::ScalarType dtype, bool is_fast) {
  at::Tensor d = new_tensor({input.sizes.rows, weight.sizes.rows}, dtype, input.anchor());
  run_gemm(input, weight, {.is_fast = is_fast}, bias, d);
  return d;
}

at::Tensor dgrad(const Operand& grad_output, const Operand& weight, at::ScalarType dtype,
                 const at::Tensor& addend, bool is_fast) {
  const bool adds = addend.defined() && addend.scalar_type() == dtype;
  at::Tensor d =
      adds ? addend.contiguous()
           : new_tensor({grad_output.sizes.rows, weight.sizes.cols}, dtype, grad_output.anchor());
  run_gemm(grad_output, weight, {.b_is_transposed = true, .accumulate = adds, .is_fast = is_fast},
           {}, d);
  return d;
}

Operand prepare_grad_output(const CallState& state, const LinearSpec& spec,
                            const at::Tensor& gradient, const GradOutputRequest& request,
                            at::Tensor* grad_bias) {
  Operand operand;
  const bool gathers = spec.sharding.gathers_grad_output() && request.needs_operand();
  const bool quantizes = state.quantizes_backward();
  const bool is_quantized_already = quantizes && is_python_tensor(gradient) && !gathers;
  if (is_quantized_already && request.needs_operand()) {
    const std::string label = backward_label(spec);
    operand = read_quantized(gradient, request.dtype, {label, "grad_output"});
    complete_operand(&operand, request.usages, state.quantizers->grad_output(spec.gemm),
                     request.dtype);
  }
  if (is_quantized_already && grad_bias == nullptr) {
    return operand;
  }
  const at::Tensor grad_output = gradient_matrix(gradient, request.dtype);
  const bool needs_quantizing = quantizes && !is_quantized_already && request.needs_operand();
  ShardedCast cast(gathers ? spec.sharding.group.get() : nullptr,
                   needs_quantizing ? &state.quantizers->grad_output(spec.gemm) : nullptr,
                   grad_output.size(0), request.usages);
  Quantizer* const quantizer = cast.quantizer();
  BiasGradientArgs bias_args;
  const bool is_fused = quantizer != nullptr && grad_bias != nullptr &&
                        quantizer->prepare_fused(grad_output.sizes(), grad_output, request.usages,
                                                 &operand, &bias_args.quantized);
  if (quantizer != nullptr && !is_fused) {
    operand = quantizer->quantize(grad_output, request.usages);
  } else if (!quantizes || (gathers && quantizer == nullptr)) {
    operand = Operand::high_precision(grad_output);
  }
  if (grad_bias != nullptr) {
    bias_args.grad_output = matrix_view(grad_output);
    bias_args.grad_bias = vector_view(*grad_bias);
    bias_gradient(bias_args, context_for(grad_output));
  }
  return gathers ? cast.gather(operand) : operand;
}

TensorList run_wgrad(const WgradTask& task, const LinearSpec& spec) {
  TensorList gradients;
  if (spec.fuse_wgrad_accumulation) {
    accumulate_into_main_grad(task, spec);
    const py::gil_scoped_acquire gil;
    for (const at::Tensor& weight : task.weights) {
      gradients.push_back(weight.requires_grad() ? placeholder_gradient(weight) : at::Tensor());
    }
    return gradients;
  }
  const at::Tensor whole = new_tensor({task.grad_output.sizes.cols, task.input.sizes.cols},
                                      task.weights[0].scalar_type(), task.input.anchor());
  run_gemm(task.grad_output, task.input,
           {.a_is_transposed = true, .b_is_transposed = true, .is_fast = task.is_fast}, {}, whole);
  if (task.weights.size() == 1) {
    gradients.push_back(whole);
    return gradients;
  }
  int64_t row = 0;
  for (const at::Tensor& weight : task.weights) {
    gradients.push_back(weight.requires_grad() ? whole.narrow(0, row, weight.size(0))
                                               : at::Tensor());
    row += weight.size(0);
  }
  return gradients;
}

std::pair<TensorList, TensorList> run_delayed_wgrad(LinearPart& linear) {
  auto& tasks = linear.wgrad_store().tasks;
  TE_CHECK_AS(RuntimeError, !tasks.empty(), linear.spec().label,
              ": backward_dw found no delayed weight gradient; run forward and backward once for "
              "each backward_dw.");
  WgradTask task = std::move(tasks.front());
  tasks.pop_front();
  const PlainOperators plain;
  TensorList gradients;
  try {
    gradients = run_wgrad(task, linear.spec());
  } catch (...) {
    tasks.push_front(std::move(task));  // a missing main_grad can be mended
    throw;
  }
  if (linear.spec().fuse_wgrad_accumulation) {
    gradients.assign(gradients.size(), at::Tensor());  // placeholders are for autograd alone
  }
  return {std::move(gradients), task.weights};
}

void SavedLinear::save_weight(const CallState& state, const Operand& operand,
                              const LinearParameters& parameters, bool needs_dgrad,
                              at::ScalarType dtype) {
  const at::Tensor& first = parameters.weights[0];
  const BackwardMode mode = state.backward_mode();
  dequantizes = mode == BackwardMode::kDequantized;
  // In a quantized forward a plain operand is what a quantizer made of the weight.
  const bool reads_parameter = !state.is_quantized || mode == BackwardMode::kHighPrecision;
  weight_is_parameter =
      needs_dgrad && reads_parameter && !is_python_tensor(first) && first.scalar_type() == dtype;
  weight_is_read_late = needs_dgrad && state.quantizes_backward() && is_python_tensor(first) &&
                        !operand.can_contract_rows();
  if (needs_dgrad && !weight_is_parameter && !weight_is_read_late) {
    if (state.is_quantized && reads_parameter) {
      weight.save(Operand::high_precision(
          is_python_tensor(first) ? with_gil([&] { return dequantize_python(first, dtype); })
                                  : as_dtype(concatenate(parameters.weights), dtype)));
    } else {
      weight.save(dequantizes ? operand.rowwise_alone() : operand.for_row_contraction());
    }
  }
  if (weight_is_parameter || weight_is_read_late) {
    weights.reserve(parameters.weights.size());
    for (const at::Tensor& parameter : parameters.weights) {
      weights.emplace_back(parameter, false);
    }
  }
  if (parameters.weight_requires_grad) {
    targets = parameters.weights;
  }
}

void SavedLinear::save_input(const CallState& state, const Operand& operand,
                             const at::Tensor& original, bool keeps_original) {
  dequantizes = state.backward_mode() == BackwardMode::kDequantized;
  keeps_original |= state.backward_mode() == BackwardMode::kHighPrecision;
  if (keeps_original && state.is_quantized && original.defined()) {
    input.save(Operand::high_precision(original));
    is_original = true;
  } else {
    // A quantized input of the caller's has no original: it is what backward reads.
    input.save(state.quantizes_backward() ? operand.for_row_contraction()
                                          : operand.rowwise_alone());
  }
}

Operand SavedLinear::kept_input(torch::autograd::Node* node, const CallState& state,
                                at::ScalarType dtype) const {
  Operand operand = input.unpack(node);
  if (!operand.is_defined()) {
    return operand;
  }
  if (operand.is_quantized()) {
    return state.quantizes_backward() ? operand
                                      : Operand::high_precision(dequantize(operand, dtype));
  }
  return Operand::high_precision(as_matrix(as_dtype(operand.plain(), dtype)));
}

Operand SavedLinear::wgrad_input(Operand operand, const CallState& state,
                                 const LinearSpec& spec) const {
  return operand.is_defined() && state.quantizes_backward() && is_original
             ? state.quantizers->input(spec.gemm).quantize(operand.plain(),
                                                           {.rowwise = false, .columnwise = true})
             : operand;
}

PendingOperand SavedLinear::start_gather(torch::autograd::Node* node, const CallState& state,
                                         const LinearSpec& spec, at::ScalarType dtype) const {
  return {kept_input(node, state, dtype), *spec.sharding.group};
}

Operand SavedLinear::unpack_input(torch::autograd::Node* node, const CallState& state,
                                  const LinearSpec& spec, at::ScalarType dtype) const {
  return wgrad_input(kept_input(node, state, dtype), state, spec);
}

Operand SavedLinear::unpack_weight(torch::autograd::Node* node, const LinearSpec& spec,
                                   at::ScalarType dtype) const {
  if (weight_is_read_late) {
    const std::string& name = spec.weight_names[0].text();
    const std::string label = backward_label(spec);
    Operand operand = read_quantized(unpack_saved(weights[0]), dtype, {label, name.c_str()});
    TE_CHECK_AS(RuntimeError, operand.can_contract_rows(), label, ": ", name,
                " has no columnwise copy, which the gradient of the input reads. Quantize it with "
                "columnwise usage.");
    return operand.for_row_contraction();
  }
  if (!weight_is_parameter) {
    Operand operand = weight.unpack(node);
    return dequantizes && operand.is_quantized()
               ? Operand::high_precision(dequantize(operand, dtype))
               : operand;
  }
  TensorList parameters;
  int64_t rows = 0;
  for (const auto& saved : weights) {
    parameters.push_back(unpack_saved(saved));
    // An assignment to .data replaces the values of a saved parameter, unnoticed by autograd.
    const at::Tensor& parameter = parameters.back();
    TE_CHECK(parameter.dim() == 2 && parameter.size(1) == spec.in_features &&
                 parameter.scalar_type() == dtype,
             backward_label(spec), ": ", spec.weight_names[parameters.size() - 1].text(),
             " has shape ", parameter.sizes(), " and dtype ", at::toString(parameter.scalar_type()),
             "; [rows, ", spec.in_features, "] and ", at::toString(dtype),
             " are required, as in forward. Keep parameters until backward.");
    rows += parameter.size(0);
  }
  TE_CHECK(rows == spec.out_features, backward_label(spec), ": ", spec.weight_names[0].text(),
           weights.size() > 1 ? " and the other weights have " : " has ", rows, " rows; ",
           spec.out_features, " are required, as in forward. Keep parameters until backward.");
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
