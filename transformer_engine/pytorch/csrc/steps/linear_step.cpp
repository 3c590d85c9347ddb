// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/linear_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <transformer_engine/error.h>

#include "allocate.h"
#include "steps/node_support.h"

namespace py = pybind11;
using torch::autograd::variable_list;

namespace transformer_engine::pytorch {

namespace {

// Edges: inp, [gamma, [beta]], weights, biases. Outputs: y, [layernorm output].
struct LinearNode : public torch::autograd::Node {
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    linear_saved.reset();
    norm_saved.reset();
  }
  std::string name() const override {
    return norm.has_value() ? "LayerNormLinearBackward" : "LinearBackward";
  }

  size_t first_weight() const { return norm.has_value() ? (norm_saved.has_beta ? 3 : 2) : 1; }
  bool any_wanted(size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      if (task_should_compute_output(i)) {
        return true;
      }
    }
    return false;
  }

  std::shared_ptr<LinearPart> linear;  // for delayed weight gradients
  std::optional<NormSpec> norm;
  CallState state;
  SavedLinear linear_saved;
  SavedNorm norm_saved;
  TensorList biases;  // their shapes and dtypes only
  c10::SmallVector<int64_t, 4> input_sizes, output_sizes;
  at::ScalarType input_dtype = at::kFloat;
  at::ScalarType dtype = at::kFloat;  // of the activations
  size_t weight_count = 0;
  std::shared_ptr<FirstMicrobatch> first_microbatch;
  bool quantizes_grad_input = false;
  bool gathers_layernorm_output = false;  // the second output has all ranks' rows

 private:
  struct Wanted {
    bool input, norm, weight, bias;
    bool needs_dgrad() const { return input || norm; }
  };
  // dgrad and wgrad, and what follows from them.
  void add_product_gradients(const Operand& grad_output, const at::Tensor& grad_layernorm,
                             const Wanted& wanted, variable_list* result);
  void add_bias_gradients(const at::Tensor& grad_bias, variable_list* result) const;
  void add_weight_gradients(WgradTask task, variable_list* result) const;
  void add_input_gradients(const at::Tensor& grad_input, const Wanted& wanted,
                           variable_list* result) const;
};

void LinearNode::add_bias_gradients(const at::Tensor& grad_bias, variable_list* result) const {
  int64_t offset = 0;
  for (size_t i = 0; i < biases.size(); ++i) {
    (*result)[first_weight() + weight_count + i] =
        biases.size() == 1 ? grad_bias.view(biases[i].sizes())
                           : grad_bias.narrow(0, offset, biases[i].numel());
    offset += biases[i].numel();
  }
}

void LinearNode::add_weight_gradients(WgradTask task, variable_list* result) const {
  const LinearSpec& spec = linear->spec();
  if (spec.delay_wgrad_compute) {
    linear->wgrad_store().tasks.push_back(std::move(task));
    return;
  }
  const TensorList gradients = run_wgrad(task, spec);
  for (size_t i = 0; i < gradients.size(); ++i) {
    (*result)[first_weight() + i] = gradients[i];
  }
}

void LinearNode::add_input_gradients(const at::Tensor& grad_input, const Wanted& wanted,
                                     variable_list* result) const {
  at::Tensor gradient = grad_input;
  if (norm.has_value()) {
    NormGradients gradients =
        norm_backward(*norm, norm_saved.unpack(), grad_input,
                      {.input = wanted.input,
                       .gamma = task_should_compute_output(1),
                       .beta = norm_saved.has_beta && task_should_compute_output(2)},
                      norm_saved.beta_dtype);
    gradient = gradients.input;
    (*result)[1] = gradients.gamma;
    if (norm_saved.has_beta) {
      (*result)[2] = gradients.beta;
    }
  }
  if (!wanted.input) {
    return;
  }
  if (quantizes_grad_input && state.quantizes_backward()) {
    const auto& quantizer = state.quantizers->backward[2 * linear->spec().gemm + 1];
    (*result)[0] = make_quantized_tensor(gradient, input_sizes, input_dtype, quantizer);
    return;
  }
  (*result)[0] = as_dtype(gradient.dim() == static_cast<int64_t>(input_sizes.size())
                              ? gradient
                              : gradient.view(input_sizes),
                          input_dtype);
}

void LinearNode::add_product_gradients(const Operand& grad_output, const at::Tensor& grad_layernorm,
                                       const Wanted& wanted, variable_list* result) {
  const LinearSpec& spec = linear->spec();
  std::optional<PendingOperand> input_gather;
  if (wanted.weight && linear_saved.is_shard) {
    input_gather = linear_saved.start_gather(this, state, spec, dtype);
  }
  PendingDgrad grad_input;
  if (wanted.needs_dgrad()) {
    grad_input =
        start_dgrad(spec.sharding, grad_output, linear_saved.unpack_weight(this, spec, dtype),
                    dtype, {.tensor = grad_layernorm, .is_whole = gathers_layernorm_output},
                    state.fast_accumulation().dgrad);
    if (!spec.sharding.sums_grad_input()) {
      add_input_gradients(grad_input.wait(), wanted, result);
    }
  }
  if (wanted.weight) {
    add_weight_gradients({.grad_output = grad_output,
                          .input = input_gather.has_value()
                                       ? linear_saved.wgrad_input(input_gather->wait(), state, spec)
                                       : linear_saved.unpack_input(this, state, spec, dtype),
                          .weights = linear_saved.targets,
                          .first_microbatch = first_microbatch,
                          .is_fast = state.fast_accumulation().wgrad},
                         result);
  }
  if (wanted.needs_dgrad() && spec.sharding.sums_grad_input()) {  // ranks added while wgrad ran
    add_input_gradients(grad_input.wait(), wanted, result);
  }
}

variable_list LinearNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(num_outputs());
  if (is_without_gradient(grads)) {
    finish_backward(state);
    return result;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const PlainOperators plain;
    const size_t weights_end = first_weight() + weight_count;
    Wanted wanted{.input = task_should_compute_output(0),
                  .norm = any_wanted(1, first_weight()),
                  .weight = any_wanted(first_weight(), weights_end),
                  .bias = any_wanted(weights_end, num_outputs())};
    const at::Tensor grad_layernorm =
        grads.size() > 1 ? gradient_matrix(grads[1], dtype) : at::Tensor();
    const auto options = at::TensorOptions().dtype(dtype).device(
        grads[0].defined() ? grads[0].device() : grad_layernorm.device());
    // An output that was not used has no gradient: it counts as zeros.
    const at::Tensor grad = grads[0].defined() ? grads[0] : at::zeros(output_sizes, options);
    at::Tensor grad_bias;
    if (wanted.bias) {
      grad_bias = new_tensor({output_sizes.back()}, biases[0].scalar_type(), biases[0]);
    }
    const Operand grad_output = prepare_grad_output(
        state, linear->spec(), grad,
        {.dtype = dtype, .usages = {.rowwise = wanted.needs_dgrad(), .columnwise = wanted.weight}},
        wanted.bias ? &grad_bias : nullptr);
    if (wanted.bias) {
      add_bias_gradients(grad_bias, &result);
    }
    add_product_gradients(grad_output, grad_layernorm, wanted, &result);
    finish_backward(state);
  }
  return once_differentiable(*this, grads, std::move(result));
}

}  // namespace

struct LinearStep::Call {
  at::Tensor input;   // as given
  at::Tensor source;  // what the norm or the GEMM reads: plain and contiguous
  CallState state;
  LinearParameters parameters;
  NormParameters norm_parameters;
  at::ScalarType dtype;  // of the activations
  std::optional<bool> is_first_microbatch;
  bool quantizes_output = false;
  bool quantizes_grad_input = false;
  // What the autograd graph wants.
  EdgeList edges;
  bool needs_node = false;
  bool input_requires_grad = false;  // `input` may be replaced by a contiguous copy without history

  bool needs_dgrad() const {
    return needs_node && (input_requires_grad ||
                          (norm_parameters.gamma.defined() && norm_parameters.requires_grad()));
  }
  bool needs_wgrad() const { return needs_node && parameters.weight_requires_grad; }
};

struct LinearStep::Outputs {
  at::Tensor output, layernorm_output;
  NodePtr<torch::autograd::Node> node;
};

LinearStep::LinearStep(LinearStepSpec spec)
    : ModuleStep(spec.name),
      spec_(std::move(spec)),
      linear_(std::make_shared<LinearPart>(spec_.linear)) {}

// Whether backward starts from the input as it was before quantization.
bool LinearStep::keeps_original(const Call& call) const {
  switch (call.state.backward_mode()) {
    case BackwardMode::kHighPrecision:
      return call.needs_wgrad();
    case BackwardMode::kDequantized:
      return false;
    case BackwardMode::kQuantized:
      break;
  }
  return spec_.save_original_input && call.needs_wgrad() && call.state.is_quantized &&
         call.state.quantizers->input(spec_.linear.gemm).is_requantization_safe();
}

LayerInput LinearStep::layer_input(Call& call, NormResult* norm_result) {
  const CallState& state = call.state;
  const LinearSpec& linear = spec_.linear;
  const bool observes = state.is_calibrating && !state.is_replay;
  const bool needs_copy = call.needs_wgrad() && !keeps_original(call);
  ShardedCast cast = input_cast(state, linear, matrix_sizes(call.input.sizes()).rows, needs_copy,
                                returns_gathered());
  Quantizer* const quantizer = cast.quantizer();
  Operand local;
  if (!spec_.norm.has_value()) {
    if (quantizer != nullptr && !cast.is_sharded() && is_python_tensor(call.input)) {
      local = read_quantized(call.input, call.dtype, {spec_.name, "inp"});
      complete_operand(&local, cast.usages(), *quantizer, call.dtype);
      return gather_input(cast, state, linear, std::move(local), needs_copy);
    }
    // The tensor itself where nothing has to change, so that autograd's version check watches it.
    call.source = as_plain(call.input);
    const at::Tensor input = as_dtype(call.source, call.dtype);
    local = quantizer != nullptr ? quantizer->quantize(input, cast.usages())
                                 : Operand::high_precision(input);
    if (observes) {
      state.quantizers->input(linear.gemm).calibrate(input);
    }
    return gather_input(cast, state, linear, std::move(local), needs_copy);
  }
  // The norm reads the input's own dtype, also under torch.autocast, and rounds once.
  call.source = as_plain(call.input);
  const bool needs_output =
      spec_.return_layernorm_output || quantizer == nullptr || keeps_original(call);
  *norm_result = norm_forward(*spec_.norm, call.source, call.norm_parameters,
                              {.dtype = call.dtype,
                               .wants_output = needs_output,
                               .wants_statistics = call.needs_node,
                               .quantizer = quantizer,
                               .usages = cast.usages()});
  if (observes) {
    state.quantizers->input(linear.gemm).calibrate(norm_result->output);
  }
  local =
      quantizer != nullptr ? norm_result->quantized : Operand::high_precision(norm_result->output);
  return gather_input(cast, state, linear, std::move(local), needs_copy);
}

NodePtr<torch::autograd::Node> LinearStep::record(Call& call, const Operand& weight,
                                                  const NormResult& norm_result) {
  auto node = new_node<LinearNode>();
  node->set_next_edges(call.edges.take());
  node->linear = linear_;
  node->norm = spec_.norm;
  node->state = call.state;
  node->input_dtype = call.input.scalar_type();
  node->dtype = call.dtype;
  node->input_sizes.assign(call.input.sizes().begin(), call.input.sizes().end());
  node->output_sizes = output_sizes(call.input);
  node->weight_count = call.parameters.weights.size();
  node->first_microbatch = linear_->first_microbatch(call.state, call.is_first_microbatch);
  node->quantizes_grad_input = call.quantizes_grad_input;
  node->gathers_layernorm_output = returns_gathered();
  if (!spec_.return_bias) {
    node->biases = call.parameters.biases;
  }
  if (call.needs_dgrad() && spec_.norm.has_value()) {
    node->norm_saved.save(call.source, call.norm_parameters, norm_result);
  }
  node->norm_saved.has_beta = call.norm_parameters.beta.defined();
  node->linear_saved.save_weight(call.state, weight, call.parameters, call.needs_dgrad(),
                                 call.dtype);
  return node;
}

LinearStep::Outputs LinearStep::compute(Call& call) {
  const ReplayScales replay(call.state);
  const Sharding& sharding = spec_.linear.sharding;
  Outputs outputs;
  NormResult norm_result;
  const LayerInput input = layer_input(call, &norm_result);
  const Operand weight = linear_->weight_operand(call.state, call.parameters,
                                                 {.is_first_microbatch = call.is_first_microbatch,
                                                  .dtype = call.dtype,
                                                  .needs_dgrad = call.needs_dgrad()});
  if (call.state.is_calibrating && !call.state.is_replay) {
    call.state.quantizers->weight(spec_.linear.gemm).calibrate(weight.plain());
  }
  at::Tensor bias;
  if (!spec_.return_bias) {
    bias = as_dtype(concatenate(call.parameters.biases), call.dtype);
  }
  const Operand flat = input.operand.is_quantized()
                           ? input.operand
                           : Operand::high_precision(as_matrix(input.operand.plain()));
  const c10::SmallVector<int64_t, 4> sizes = output_sizes(call.input);
  outputs.output = layer_output(
      sharding, flat, weight, bias,
      {.dtype = call.dtype, .sizes = sizes, .is_fast = call.state.fast_accumulation().fprop});
  if (call.quantizes_output && call.state.is_quantized) {
    const auto& quantizer = call.state.quantizers->forward[3 * spec_.linear.gemm + 2];
    outputs.output = make_quantized_tensor(outputs.output, sizes, call.dtype, quantizer);
  }
  if (spec_.return_layernorm_output) {
    outputs.layernorm_output = norm_result.output;
    if (returns_gathered()) {
      auto gathered_sizes = sizes;
      gathered_sizes.back() = spec_.linear.in_features;
      outputs.layernorm_output = input.gathered.view(gathered_sizes);
    }
  }
  if (!call.needs_node) {
    return outputs;
  }
  outputs.node = record(call, weight, norm_result);
  attach_output(outputs.output, outputs.node);
  if (outputs.layernorm_output.defined()) {
    attach_output(outputs.layernorm_output, outputs.node);
  }
  if (call.needs_wgrad()) {
    auto& saved = static_cast<LinearNode&>(*outputs.node).linear_saved;
    if (outputs.layernorm_output.defined() && !call.state.is_quantized) {
      saved.input.save(input.kept(), /*is_output=*/!returns_gathered());
      saved.is_shard = input.is_shard();
    } else {
      input.save(&saved, call.state, spec_.norm.has_value() ? norm_result.output : call.source,
                 keeps_original(call));
    }
  }
  return outputs;
}

c10::SmallVector<int64_t, 4> LinearStep::output_sizes(const at::Tensor& input) const {
  c10::SmallVector<int64_t, 4> sizes(input.sizes().begin(), input.sizes().end());
  spec_.linear.sharding.scale_rows(sizes.data());
  sizes.back() = spec_.linear.out_features;
  return sizes;
}

PyObject* LinearStep::forward(PyObject* module, PyObject* args, PyObject* kwargs) {
  static const std::array<Name, 4> kArguments{"inp", "is_first_microbatch", "fp8_output",
                                              "fp8_grad"};
  const auto values = parse_arguments(spec_.name.c_str(), args, kwargs, kArguments);
  Call call;
  call.input = unpack_input(values[0], spec_.name, "inp");
  check_input(spec_.name, call.input, spec_.linear.in_features, "in_features");
  spec_.linear.sharding.check_input(spec_.name, call.input.sizes());
  call.is_first_microbatch = read_is_first_microbatch(values[1], spec_.name);
  call.quantizes_output = truth(values[2]);
  call.quantizes_grad_input = truth(values[3]);
  const AutocastState& autocast = autocast_state();
  TE_CHECK(!spec_.save_original_input || !autocast.enabled || !autocast.recipe->is_delayed,
           spec_.name,
           ": save_original_input is True under DelayedScaling; a second cast would need the scale "
           "of the first. Use another recipe, or save_original_input=False.");
  check_recipe(spec_.linear.sharding, spec_.name, autocast);
  const auto amp = amp_dtype(call.input);
  call.dtype = amp.value_or(call.input.scalar_type());
  const ParameterRule required{.dtype = amp.has_value() ? std::nullopt : std::optional(call.dtype),
                               .device = call.input.device()};
  call.parameters = linear_->read_parameters(module, required);
  if (spec_.norm.has_value()) {
    call.norm_parameters = read_norm_parameters(*spec_.norm, module, required);
  }
  call.state = begin_forward(module, call.dtype);
  call.edges.add(call.input);
  call.input_requires_grad = call.input.requires_grad();
  if (spec_.norm.has_value()) {
    call.edges.add(call.norm_parameters.gamma);
    if (call.norm_parameters.beta.defined()) {
      call.edges.add(call.norm_parameters.beta);
    }
  }
  for (const at::Tensor& weight : call.parameters.weights) {
    call.edges.add(weight);
  }
  if (!spec_.return_bias) {
    for (const at::Tensor& bias : call.parameters.biases) {
      call.edges.add(bias);
    }
  }
  call.needs_node = call.edges.are_recorded();
  Outputs outputs;
  {
    const py::gil_scoped_release no_gil;
    const PlainOperators plain;
    outputs = compute(call);
  }
  end_forward(call.state, outputs.node != nullptr, call.edges.any_requires_grad());
  return assemble_outputs({.output = std::move(outputs.output),
                           .with_bias = spec_.return_bias,
                           .empty_bias = spec_.norm.has_value(),
                           .bias = spec_.return_bias
                                       ? differentiable_concatenate(call.parameters.biases)
                                       : at::Tensor(),
                           .with_layernorm_output = spec_.return_layernorm_output,
                           .layernorm_output = std::move(outputs.layernorm_output)});
}

}  // namespace transformer_engine::pytorch
