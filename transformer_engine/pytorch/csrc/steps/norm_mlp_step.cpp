// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/norm_mlp_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <transformer_engine/error.h>

#include "allocate.h"
#include "steps/node_support.h"

namespace py = pybind11;
using torch::autograd::variable_list;

namespace transformer_engine::pytorch {

namespace {

// The activation's result as fc2 reads it, and before quantization where it is kept.
struct Activation {
  Operand operand;
  at::Tensor output;
};

// What forward computes before fc2, and backward needs.
struct Hidden {
  NormResult norm;
  LayerInput fc1_input;   // norm output
  at::Tensor fc1_output;  // before the activation, bias included
  Activation fc2_input;
};

struct HiddenRequest {
  at::ScalarType dtype = at::kFloat;
  bool wants_statistics = false;
  bool wants_layernorm_output = false;
  bool gathers_layernorm_output = false;
  bool needs_fc1_wgrad = false, needs_fc2_wgrad = false;
};

Activation activation_forward_part(const NormMLPStepSpec& spec, const CallState& state,
                                   const at::Tensor& input, bool needs_wgrad) {
  ActivationForwardArgs args;
  args.kind = spec.activation;
  args.params = spec.activation_params;
  args.input = matrix_view(input);
  const int64_t cols = input.size(1) / (is_gated(spec.activation) ? 2 : 1);
  Quantizer* const quantizer = state.is_quantized ? &state.quantizers->input(1) : nullptr;
  const Usages usages = input_usages(state, needs_wgrad);
  const bool keeps_output = state.backward_mode() == BackwardMode::kHighPrecision;
  Activation result;
  const bool is_fused = quantizer != nullptr && !keeps_output &&
                        quantizer->prepare_fused({input.size(0), cols}, input, usages,
                                                 &result.operand, &args.quantized);
  if (is_fused) {
    args.output = {.dtype = args.input.dtype, .rows = input.size(0), .cols = cols};
  } else {
    result.output = new_tensor({input.size(0), cols}, input.scalar_type(), input);
    args.output = matrix_view(result.output);
  }
  activation_forward(args, context_for(input));
  if (!is_fused) {
    result.operand = quantizer == nullptr ? Operand::high_precision(result.output)
                                          : quantizer->quantize(result.output, usages);
  }
  return result;
}

Hidden compute_hidden(const NormMLPStepSpec& spec, const CallState& state, const at::Tensor& input,
                      const NormParameters& norm_parameters, const Operand& fc1_weight,
                      const at::Tensor& fc1_bias, const HiddenRequest& request) {
  Hidden hidden;
  ShardedCast cast = input_cast(state, spec.fc1, matrix_sizes(input.sizes()).rows,
                                request.needs_fc1_wgrad, request.gathers_layernorm_output);
  Quantizer* const quantizer = cast.quantizer();
  hidden.norm =
      norm_forward(spec.norm, input, norm_parameters,
                   {.dtype = request.dtype,
                    .wants_output = request.wants_layernorm_output || quantizer == nullptr ||
                                    state.backward_mode() == BackwardMode::kHighPrecision,
                    .wants_statistics = request.wants_statistics,
                    .quantizer = quantizer,
                    .usages = cast.usages()});
  hidden.fc1_input =
      gather_input(cast, state, spec.fc1,
                   quantizer != nullptr ? hidden.norm.quantized
                                        : Operand::high_precision(as_matrix(hidden.norm.output)),
                   request.needs_fc1_wgrad);
  hidden.fc1_output = fprop(hidden.fc1_input.operand, fc1_weight, fc1_bias, request.dtype,
                            state.fast_accumulation().fprop);
  hidden.fc2_input =
      activation_forward_part(spec, state, hidden.fc1_output, request.needs_fc2_wgrad);
  return hidden;
}

// Edges: inp, gamma, [beta], fc1 weight, [fc1 bias], fc2 weight, [fc2 bias]. Outputs: y, [layernorm
// output].
struct NormMLPNode : public torch::autograd::Node {
  // Copies: a spec made from nothing would make its names, which needs the GIL.
  explicit NormMLPNode(const NormMLPStepSpec& step_spec) : spec(step_spec) {}
  variable_list apply(variable_list&& grads) override;
  void release_variables() override;
  std::string name() const override { return "LayerNormMLPBackward"; }

  NormMLPStepSpec spec;
  std::shared_ptr<LinearPart> fc1, fc2;
  CallState state;
  SavedNorm norm_saved;
  torch::autograd::SavedVariable beta, fc1_bias_saved;  // for recomputation
  SavedLinear fc1_saved, fc2_saved;
  SavedOperand fc1_forward_weight;  // for recomputation, where fc1_saved has not what fprop reads
  torch::autograd::SavedVariable fc1_output;
  at::Tensor fc1_bias, fc2_bias;  // shapes and dtypes of the gradients; undefined without
  c10::SmallVector<int64_t, 4> sizes;
  at::ScalarType input_dtype = at::kFloat;
  at::ScalarType dtype = at::kFloat;
  std::shared_ptr<FirstMicrobatch> fc1_first, fc2_first;

  // Positions among the edges.
  size_t fc1_weight_edge() const { return norm_saved.has_beta ? 3 : 2; }
  size_t fc1_bias_edge() const { return fc1_weight_edge() + 1; }
  size_t fc2_weight_edge() const { return fc1_bias_edge() + (fc1_bias.defined() ? 1 : 0); }
  size_t fc2_bias_edge() const { return fc2_weight_edge() + 1; }

  bool wants(size_t edge) const { return task_should_compute_output(edge); }

 private:
  struct Activated {
    Operand fc1_input, fc2_input;
    at::Tensor fc1_output;
  };
  // `fc1_weight` as forward read it.
  Activated restore(const Operand& fc1_weight, const SavedNorm::Tensors& norm);
  Operand activation_backward_part(const at::Tensor& grad_activated, const at::Tensor& input,
                                   const Usages& usages, at::Tensor* grad_bias) const;
  Operand backward_input(const Operand& operand, const at::Tensor& original) const;
  Operand gathered_input(const LayerInput& input, const at::Tensor& original) const;
  void add_weight_gradient(LinearPart& linear, WgradTask task, size_t edge,
                           variable_list* result) const;
  void add_norm_gradients(const SavedNorm::Tensors& norm, const at::Tensor& grad_normalized,
                          variable_list* result) const;
};

void NormMLPNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  norm_saved.reset();
  fc1_saved.reset();
  fc2_saved.reset();
  fc1_forward_weight.reset();
  for (auto* saved : {&beta, &fc1_bias_saved, &fc1_output}) {
    saved->reset_data();
  }
}

NormMLPNode::Activated NormMLPNode::restore(const Operand& fc1_weight,
                                            const SavedNorm::Tensors& norm) {
  if (!spec.recomputes) {
    return {fc1_saved.is_shard ? Operand{}  // being gathered
                               : fc1_saved.unpack_input(this, state, fc1->spec(), dtype),
            fc2_saved.unpack_input(this, state, fc2->spec(), dtype), unpack_saved(fc1_output)};
  }
  CallState repeated = state;
  repeated.is_replay = true;
  const ReplayScales replay(repeated);
  const NormParameters parameters{norm.gamma, unpack_saved(beta)};
  Hidden hidden =
      compute_hidden(spec, repeated, norm.input, parameters, fc1_weight,
                     as_dtype(unpack_saved(fc1_bias_saved), dtype),
                     {.dtype = dtype, .needs_fc1_wgrad = true, .needs_fc2_wgrad = true});
  return {gathered_input(hidden.fc1_input, hidden.norm.output),
          backward_input(hidden.fc2_input.operand, hidden.fc2_input.output), hidden.fc1_output};
}

Operand NormMLPNode::activation_backward_part(const at::Tensor& grad_activated,
                                              const at::Tensor& input, const Usages& usages,
                                              at::Tensor* grad_bias) const {
  ActivationBackwardArgs args;
  args.kind = spec.activation;
  args.params = spec.activation_params;
  args.grad_output = matrix_view(grad_activated);
  args.input = matrix_view(input);
  if (grad_bias != nullptr) {
    args.grad_bias = vector_view(*grad_bias);
  }
  Quantizer* const quantizer = state.quantizes_backward() && (usages.rowwise || usages.columnwise)
                                   ? &state.quantizers->grad_output(0)
                                   : nullptr;
  Operand operand;
  const bool is_fused =
      quantizer != nullptr &&
      quantizer->prepare_fused(input.sizes(), input, usages, &operand, &args.quantized);
  at::Tensor grad_input;
  if (is_fused) {
    args.grad_input = {.dtype = args.input.dtype, .rows = args.input.rows, .cols = args.input.cols};
  } else {
    grad_input = new_tensor(input.sizes(), input.scalar_type(), input);
    args.grad_input = matrix_view(grad_input);
  }
  activation_backward(args, context_for(input));
  if (!is_fused) {
    operand = quantizer == nullptr ? Operand::high_precision(grad_input)
                                   : quantizer->quantize(grad_input, usages);
  }
  return operand;
}

// What backward reads of an operand that was just computed again.
Operand NormMLPNode::backward_input(const Operand& operand, const at::Tensor& original) const {
  switch (state.backward_mode()) {
    case BackwardMode::kQuantized:
      break;
    case BackwardMode::kHighPrecision:
      return Operand::high_precision(as_matrix(original));
    case BackwardMode::kDequantized:
      return Operand::high_precision(dequantize(operand, dtype));
  }
  return operand;
}

// The same for the input of fc1, of all rows.
Operand NormMLPNode::gathered_input(const LayerInput& input, const at::Tensor& original) const {
  if (!input.is_shard() ||
      (state.backward_mode() == BackwardMode::kQuantized && input.operand.can_contract_rows())) {
    return backward_input(input.operand, original);
  }
  Operand whole =
      PendingOperand(backward_input(input.kept(), original), *spec.fc1.sharding.group).wait();
  return input.keeps_plain ? state.quantizers->input(0).quantize(
                                 whole.plain(), {.rowwise = false, .columnwise = true})
                           : whole;
}

void NormMLPNode::add_weight_gradient(LinearPart& linear, WgradTask task, size_t edge,
                                      variable_list* result) const {
  if (linear.spec().delay_wgrad_compute) {
    linear.wgrad_store().tasks.push_back(std::move(task));
    return;
  }
  (*result)[edge] = run_wgrad(task, linear.spec())[0];
}

void NormMLPNode::add_norm_gradients(const SavedNorm::Tensors& norm,
                                     const at::Tensor& grad_normalized,
                                     variable_list* result) const {
  NormGradients gradients =
      norm_backward(spec.norm, norm, grad_normalized,
                    {.input = wants(0), .gamma = wants(1), .beta = norm_saved.has_beta && wants(2)},
                    norm_saved.beta_dtype);
  if (gradients.input.defined()) {
    (*result)[0] = as_dtype(gradients.input.view(sizes), input_dtype);
  }
  (*result)[1] = gradients.gamma;
  if (norm_saved.has_beta) {
    (*result)[2] = gradients.beta;
  }
}

variable_list NormMLPNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(num_outputs());
  if (is_without_gradient(grads)) {
    finish_backward(state);
    return result;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const PlainOperators plain;
    const bool wants_norm = wants(0) || wants(1) || (norm_saved.has_beta && wants(2));
    const bool wants_fc1_bias = fc1_bias.defined() && wants(fc1_bias_edge());
    const bool wants_fc2_bias = fc2_bias.defined() && wants(fc2_bias_edge());
    const bool wants_fc1_weight = wants(fc1_weight_edge());
    const bool wants_fc2_weight = wants(fc2_weight_edge());
    const bool wants_fc1 = wants_norm || wants_fc1_weight || wants_fc1_bias;

    const at::Tensor grad_layernorm =
        grads.size() > 1 ? gradient_matrix(grads[1], dtype) : at::Tensor();
    const auto options = at::TensorOptions().dtype(dtype).device(
        grads[0].defined() ? grads[0].device() : grad_layernorm.device());
    const at::Tensor grad = grads[0].defined() ? grads[0] : at::zeros(sizes, options);
    at::Tensor grad_fc2_bias = wants_fc2_bias
                                   ? new_tensor(fc2_bias.sizes(), fc2_bias.scalar_type(), fc2_bias)
                                   : at::Tensor();
    const Operand grad_output = prepare_grad_output(
        state, fc2->spec(), grad,
        {.dtype = dtype, .usages = {.rowwise = wants_fc1, .columnwise = wants_fc2_weight}},
        wants_fc2_bias ? &grad_fc2_bias : nullptr);
    if (wants_fc2_bias) {
      result[fc2_bias_edge()] = grad_fc2_bias;
    }
    const Operand fc1_weight = wants_norm || (spec.recomputes && !fc1_forward_weight.is_saved())
                                   ? fc1_saved.unpack_weight(this, fc1->spec(), dtype)
                                   : Operand{};
    const SavedNorm::Tensors norm =
        wants_norm || spec.recomputes ? norm_saved.unpack() : SavedNorm::Tensors{};
    std::optional<PendingOperand> input_gather;
    if (wants_fc1_weight && fc1_saved.is_shard) {
      input_gather = fc1_saved.start_gather(this, state, fc1->spec(), dtype);
    }
    const Activated activated =
        restore(fc1_forward_weight.is_saved() ? fc1_forward_weight.unpack(this) : fc1_weight, norm);
    if (wants_fc2_weight) {
      add_weight_gradient(*fc2,
                          {grad_output, activated.fc2_input, fc2_saved.targets, fc2_first,
                           state.fast_accumulation().wgrad},
                          fc2_weight_edge(), &result);
    }
    if (wants_fc1) {
      const at::Tensor grad_activated =
          dgrad(grad_output, fc2_saved.unpack_weight(this, fc2->spec(), dtype), dtype, {},
                state.fast_accumulation().dgrad);
      at::Tensor grad_fc1_bias =
          wants_fc1_bias ? new_tensor(fc1_bias.sizes(), fc1_bias.scalar_type(), fc1_bias)
                         : at::Tensor();
      const Operand grad_fc1 = activation_backward_part(grad_activated, activated.fc1_output,
                                                        {wants_norm, wants_fc1_weight},
                                                        wants_fc1_bias ? &grad_fc1_bias : nullptr);
      if (wants_fc1_bias) {
        result[fc1_bias_edge()] = grad_fc1_bias;
      }
      const Sharding& sharding = fc1->spec().sharding;
      PendingDgrad grad_normalized;
      if (wants_norm) {
        grad_normalized =
            start_dgrad(sharding, grad_fc1, fc1_weight, dtype,
                        {.tensor = grad_layernorm, .is_whole = spec.returns_gathered()},
                        state.fast_accumulation().dgrad);
        if (!sharding.sums_grad_input()) {
          add_norm_gradients(norm, grad_normalized.wait(), &result);
        }
      }
      if (wants_fc1_weight) {
        const Operand input = input_gather.has_value()
                                  ? fc1_saved.wgrad_input(input_gather->wait(), state, fc1->spec())
                                  : activated.fc1_input;
        add_weight_gradient(
            *fc1, {grad_fc1, input, fc1_saved.targets, fc1_first, state.fast_accumulation().wgrad},
            fc1_weight_edge(), &result);
      }
      if (wants_norm && sharding.sums_grad_input()) {  // ranks added while wgrad ran
        add_norm_gradients(norm, grad_normalized.wait(), &result);
      }
    }
    finish_backward(state);
  }
  return once_differentiable(*this, grads, std::move(result));
}

}  // namespace

struct NormMLPStep::Call {
  at::Tensor input;   // as given
  at::Tensor source;  // what the norm reads: plain and contiguous, of the input's own dtype
  CallState state;
  NormParameters norm;
  LinearParameters fc1, fc2;
  at::ScalarType dtype = at::kFloat;
  std::optional<bool> is_first_microbatch;
  EdgeList edges;
  bool needs_node = false;
  bool input_requires_grad = false;

  bool needs_fc1_dgrad() const {
    return needs_node && (input_requires_grad || norm.requires_grad());
  }
  bool needs_fc2_dgrad() const {
    return needs_node && (needs_fc1_dgrad() || fc1.weight_requires_grad || fc1.bias_requires_grad);
  }
  bool needs_wgrad(const LinearParameters& layer) const {
    return needs_node && layer.weight_requires_grad;
  }
  at::Tensor fc1_bias() const { return as_dtype(concatenate(fc1.biases), dtype); }

  Operand fc1_weight, fc2_weight;
  Hidden hidden;
  at::Tensor layernorm_output;
};

NormMLPStep::NormMLPStep(NormMLPStepSpec spec)
    : ModuleStep(spec.name),
      spec_(std::move(spec)),
      fc1_(std::make_shared<LinearPart>(spec_.fc1)),
      fc2_(std::make_shared<LinearPart>(spec_.fc2)) {}

void NormMLPStep::read_call(Call& call, PyObject* module, PyObject* args, PyObject* kwargs) {
  static const std::array<Name, 2> kArguments{"inp", "is_first_microbatch"};
  const auto values = parse_arguments(spec_.name.c_str(), args, kwargs, kArguments);
  call.input = unpack_input(values[0], spec_.name, "inp");
  check_input(spec_.name, call.input, spec_.fc1.in_features, "hidden_size");
  spec_.fc1.sharding.check_input(spec_.name, call.input.sizes());
  check_recipe(spec_.fc1.sharding, spec_.name, autocast_state());
  call.is_first_microbatch = read_is_first_microbatch(values[1], spec_.name);
  const auto amp = amp_dtype(call.input);
  call.dtype = amp.value_or(call.input.scalar_type());
  const ParameterRule required{.dtype = amp.has_value() ? std::nullopt : std::optional(call.dtype),
                               .device = call.input.device()};
  call.norm = read_norm_parameters(spec_.norm, module, required);
  call.fc1 = fc1_->read_parameters(module, required);
  call.fc2 = fc2_->read_parameters(module, required);
  call.state = begin_forward(module, call.dtype);
  call.edges.add(call.input);
  call.input_requires_grad = call.input.requires_grad();
  call.edges.add(call.norm.gamma);
  if (call.norm.beta.defined()) {
    call.edges.add(call.norm.beta);
  }
  call.edges.add(call.fc1.weights[0]);
  if (!call.fc1.biases.empty()) {
    call.edges.add(call.fc1.biases[0]);
  }
  call.edges.add(call.fc2.weights[0]);
  if (!call.fc2.biases.empty() && !spec_.return_bias) {
    call.edges.add(call.fc2.biases[0]);
  }
  call.needs_node = call.edges.are_recorded();
}

at::Tensor NormMLPStep::compute(Call& call) {
  const ReplayScales replay(call.state);
  call.source = as_plain(call.input);
  call.fc1_weight = fc1_->weight_operand(call.state, call.fc1,
                                         {.is_first_microbatch = call.is_first_microbatch,
                                          .dtype = call.dtype,
                                          .needs_dgrad = call.needs_fc1_dgrad()});
  call.fc2_weight = fc2_->weight_operand(call.state, call.fc2,
                                         {.is_first_microbatch = call.is_first_microbatch,
                                          .dtype = call.dtype,
                                          .needs_dgrad = call.needs_fc2_dgrad()});
  call.hidden =
      compute_hidden(spec_, call.state, call.source, call.norm, call.fc1_weight, call.fc1_bias(),
                     {.dtype = call.dtype,
                      .wants_statistics = call.needs_node,
                      .wants_layernorm_output = spec_.return_layernorm_output,
                      .gathers_layernorm_output = spec_.returns_gathered(),
                      .needs_fc1_wgrad = call.needs_wgrad(call.fc1) && !spec_.recomputes,
                      .needs_fc2_wgrad = call.needs_wgrad(call.fc2) && !spec_.recomputes});
  if (call.state.is_calibrating && !call.state.is_replay) {
    call.state.quantizers->input(0).calibrate(call.hidden.norm.output);
    call.state.quantizers->weight(0).calibrate(call.fc1_weight.plain());
    call.state.quantizers->input(1).calibrate(call.hidden.fc2_input.operand.plain());
    call.state.quantizers->weight(1).calibrate(call.fc2_weight.plain());
  }
  const at::Tensor bias =
      spec_.return_bias ? at::Tensor() : as_dtype(concatenate(call.fc2.biases), call.dtype);
  at::Tensor output =
      layer_output(spec_.fc2.sharding, call.hidden.fc2_input.operand, call.fc2_weight, bias,
                   {.dtype = call.dtype,
                    .sizes = call.input.sizes(),
                    .is_fast = call.state.fast_accumulation().fprop});
  if (spec_.return_layernorm_output) {
    call.layernorm_output = call.hidden.norm.output;
  }
  if (spec_.returns_gathered()) {
    c10::SmallVector<int64_t, 4> sizes(call.input.sizes().begin(), call.input.sizes().end());
    spec_.fc1.sharding.scale_rows(sizes.data());
    call.layernorm_output = call.hidden.fc1_input.gathered.view(sizes);
  }
  if (call.needs_node) {
    record(call, output);
  }
  return output;
}

void NormMLPStep::record(Call& call, const at::Tensor& output) {
  using torch::autograd::SavedVariable;
  auto node = new_node<NormMLPNode>(spec_);
  node->set_next_edges(call.edges.take());
  node->fc1 = fc1_;
  node->fc2 = fc2_;
  node->state = call.state;
  node->input_dtype = call.input.scalar_type();
  node->dtype = call.dtype;
  node->sizes.assign(call.input.sizes().begin(), call.input.sizes().end());
  node->fc1_first = fc1_->first_microbatch(call.state, call.is_first_microbatch);
  node->fc2_first = fc2_->first_microbatch(call.state, call.is_first_microbatch);
  node->fc1_bias = concatenate(call.fc1.biases);
  if (!spec_.return_bias) {
    node->fc2_bias = concatenate(call.fc2.biases);
  }
  const bool needs_norm = call.needs_fc1_dgrad();
  const bool needs_fc1 = call.needs_fc2_dgrad();
  if (needs_norm || spec_.recomputes) {
    node->norm_saved.save(call.source, call.norm, call.hidden.norm);
  }
  node->norm_saved.has_beta = call.norm.beta.defined();
  const bool is_read_alike = !call.state.is_quantized || (call.state.quantizes_backward() &&
                                                          !call.fc1_weight.columnwise.is_defined());
  node->fc1_saved.save_weight(call.state, call.fc1_weight, call.fc1,
                              needs_norm || (spec_.recomputes && is_read_alike), call.dtype);
  if (spec_.recomputes && !is_read_alike) {
    node->fc1_forward_weight.save(call.fc1_weight.rowwise_alone());
  }
  node->fc2_saved.save_weight(call.state, call.fc2_weight, call.fc2, needs_fc1, call.dtype);
  attach_output(output, node);
  if (spec_.return_layernorm_output) {
    attach_output(call.layernorm_output, node);
  }
  if (spec_.recomputes) {
    node->beta = SavedVariable(call.norm.beta, false);
    node->fc1_bias_saved = SavedVariable(node->fc1_bias, false);
    if (call.state.quantizers != nullptr && call.state.quantizers->forward_state != nullptr) {
      call.state.quantizers->forward_state->keeps_past_scales = true;
    }
    return;
  }
  if (call.fc1.weight_requires_grad) {
    if (spec_.return_layernorm_output && !call.state.is_quantized) {
      node->fc1_saved.input.save(Operand::high_precision(call.hidden.norm.output),
                                 /*is_output=*/!spec_.returns_gathered());
      node->fc1_saved.is_shard = call.hidden.fc1_input.is_shard();
    } else {
      call.hidden.fc1_input.save(&node->fc1_saved, call.state, call.hidden.norm.output, false);
    }
  }
  if (needs_fc1) {
    node->fc1_output = SavedVariable(call.hidden.fc1_output, false);
  }
  if (call.fc2.weight_requires_grad) {
    node->fc2_saved.save_input(call.state, call.hidden.fc2_input.operand,
                               call.hidden.fc2_input.output, false);
  }
}

PyObject* NormMLPStep::forward(PyObject* module, PyObject* args, PyObject* kwargs) {
  Call call;
  read_call(call, module, args, kwargs);
  at::Tensor output;
  {
    const py::gil_scoped_release no_gil;
    const PlainOperators plain;
    output = compute(call);
  }
  end_forward(call.state, call.needs_node, call.edges.any_requires_grad());
  return assemble_outputs(
      {.output = std::move(output),
       .with_bias = spec_.return_bias,
       .bias = spec_.return_bias ? differentiable_concatenate(call.fc2.biases) : at::Tensor(),
       .with_layernorm_output = spec_.return_layernorm_output,
       .layernorm_output = std::move(call.layernorm_output)});
}

}  // namespace transformer_engine::pytorch
