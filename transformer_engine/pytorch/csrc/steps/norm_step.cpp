// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/norm_step.h"

#include <ATen/ops/empty_like.h>
#include <transformer_engine/error.h>

#include <algorithm>

#include "steps/linear_part.h"
#include "steps/node_support.h"

namespace py = pybind11;
using torch::autograd::variable_list;

namespace transformer_engine::pytorch {

namespace {

// Edges: input, gamma, [beta].
struct NormNode : public torch::autograd::Node {
  // Copies: a spec made from nothing would make its names, which needs the GIL.
  explicit NormNode(const NormSpec& step_spec) : spec(step_spec) {}
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved.reset();
  }
  std::string name() const override {
    return spec.kind == NormKind::kLayerNorm ? "LayerNormBackward" : "RMSNormBackward";
  }

  NormSpec spec;
  SavedNorm saved;
  at::ScalarType input_dtype = at::kFloat;
  at::ScalarType dtype = at::kFloat;
  c10::SmallVector<int64_t, 4> matrix_sizes, input_sizes;
};

variable_list NormNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(num_outputs());
  if (is_without_gradient(grads)) {
    return result;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const PlainOperators plain;
    const at::Tensor grad = as_dtype(as_plain(grads[0]), dtype).view(matrix_sizes);
    const bool has_beta = saved.has_beta;
    NormGradients gradients = norm_backward(spec, saved.unpack(), grad,
                                            {.input = task_should_compute_output(0),
                                             .gamma = task_should_compute_output(1),
                                             .beta = has_beta && task_should_compute_output(2)},
                                            saved.beta_dtype);
    if (gradients.input.defined()) {
      result[0] = as_dtype(gradients.input.view(input_sizes), input_dtype);
    }
    result[1] = gradients.gamma;
    if (has_beta) {
      result[2] = gradients.beta;
    }
  }
  return once_differentiable(*this, grads, std::move(result));
}

// Number of leading elements of `input` per normalized block; ValueError when the trailing shape
// differs.
int64_t check_trailing_shape(const NormStepSpec& spec, const at::Tensor& input) {
  const auto sizes = input.sizes();
  const auto& shape = spec.normalized_shape;
  const bool fits =
      sizes.size() >= shape.size() && std::equal(shape.rbegin(), shape.rend(), sizes.rbegin());
  TE_CHECK(fits, spec.norm.label, ": input has shape ", sizes, "; trailing dimensions ",
           at::IntArrayRef(shape), " (normalized_shape) are required.");
  int64_t rows = 1;
  for (size_t i = 0; i + shape.size() < sizes.size(); ++i) {
    rows *= sizes[i];
  }
  return rows;
}

}  // namespace

PyObject* NormStep::forward(PyObject* module, PyObject* args, PyObject* kwargs) {
  static const std::array<Name, 1> kArguments{"input"};
  const auto values = parse_arguments(spec_.norm.label.c_str(), args, kwargs, kArguments);
  at::Tensor input = unpack_input(values[0], spec_.norm.label, "input");
  check_input_kind(spec_.norm.label, "input", input);
  const int64_t rows = check_trailing_shape(spec_, input);
  const NormParameters parameters =
      read_norm_parameters(spec_.norm, module, {.dtype = {}, .device = input.device()});
  const at::ScalarType dtype = amp_dtype(input).value_or(parameters.gamma.scalar_type());
  EdgeList edges;
  edges.add(input);
  edges.add(parameters.gamma);
  if (parameters.beta.defined()) {
    edges.add(parameters.beta);
  }
  const bool needs_node = edges.are_recorded();
  at::Tensor output;
  {
    const py::gil_scoped_release no_gil;
    const PlainOperators plain;
    const at::Tensor source = as_plain(input);
    const at::Tensor matrix = source.dim() == 2 && spec_.normalized_shape.size() == 1
                                  ? source
                                  : source.view({rows, spec_.norm.hidden});
    const NormResult normalized = norm_forward(spec_.norm, matrix, parameters,
                                               {.dtype = dtype, .wants_statistics = needs_node});
    output = normalized.output.dim() == input.dim() ? normalized.output
                                                    : normalized.output.view(input.sizes());
    if (needs_node) {
      auto node = new_node<NormNode>(spec_.norm);
      node->set_next_edges(edges.take());
      node->input_dtype = input.scalar_type();
      node->dtype = dtype;
      node->matrix_sizes = {rows, spec_.norm.hidden};
      node->input_sizes.assign(input.sizes().begin(), input.sizes().end());
      node->saved.save(source, parameters, normalized);
      attach_output(output, node);
    }
  }
  return wrap_tensor(std::move(output));
}

}  // namespace transformer_engine::pytorch
