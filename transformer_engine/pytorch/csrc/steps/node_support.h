// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Plumbing every step's autograd node shares.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/edge.h>

#include <optional>
#include <string>
#include <vector>

#include "autograd_node.h"
#include "quantizer.h"
#include "steps/python_call.h"

namespace transformer_engine::pytorch {

// Inside a step torch's operators are plain functions: no autograd recording, no autocast.
struct PlainOperators {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Collects the edges from a node to the tensors it was computed from, in order.
class EdgeList {
 public:
  void add(const at::Tensor& tensor);
  // True when autograd records functions of the tensors so far: one requires a gradient, and
  // neither no_grad, inference mode (also with enable_grad inside) nor a caller below autograd
  // forbids it.
  bool are_recorded() const;
  bool any_requires_grad() const { return requires_grad_; }
  torch::autograd::edge_list take() { return std::move(edges_); }

 private:
  torch::autograd::edge_list edges_;
  bool requires_grad_ = false;
};

// Makes `output` the next output of `node`.
void attach_output(const at::Tensor& output, const NodePtr<torch::autograd::Node>& node);

// The end of `node`'s backward. It computes plain numbers: when it is itself recorded
// (create_graph=True), differentiating its results raises an error. They depend on what the node
// was computed from and on the incoming gradients: from all of those the error is reached, however
// the second derivative is asked for.
torch::autograd::variable_list once_differentiable(const torch::autograd::Node& node,
                                                   const torch::autograd::variable_list& incoming,
                                                   torch::autograd::variable_list gradients);

// NotImplementedError when a gradient for the node called `name` belongs to a function transform or
// has a forward-mode tangent: a native backward would lose it.
void refuse_transformed(const std::string& name, const torch::autograd::variable_list& incoming);

// Whether no gradient arrived at all: a node behind a function that returned none.
bool is_without_gradient(const torch::autograd::variable_list& incoming);

// dtype that torch.autocast prescribes for the tensor's device, or nothing outside autocast.
std::optional<at::ScalarType> amp_dtype(const at::Tensor& tensor);

// What a forward requires of the module's parameters.
struct ParameterRule {
  // The input's dtype, where parameters must have it too (not under torch.autocast).
  std::optional<at::ScalarType> dtype;
  c10::Device device;  // the input's
  // TypeError for another dtype, RuntimeError for another device.
  void check(const std::string& label, const at::Tensor& parameter, const Name& name) const;
};

// TypeError for an input that is not FP32, BF16 or FP16, RuntimeError for one without data (meta)
// or on another kind of device.
void check_input_kind(const std::string& label, const char* what, const at::Tensor& input);

// Checks an input's dtype, device and last dimension.
void check_input(const std::string& label, const at::Tensor& input, int64_t features,
                 const char* features_name);

// What forward returns: output, or (output[, bias][, layernorm output]). An undefined bias is None,
// or an empty tensor when `empty_bias`. The GIL is held; a new reference.
struct ReturnedTensors {
  at::Tensor output;
  bool with_bias = false;
  bool empty_bias = false;
  at::Tensor bias;
  bool with_layernorm_output = false;
  at::Tensor layernorm_output;
};
PyObject* assemble_outputs(ReturnedTensors tensors);

// `tensor` as a new quantized Python tensor of that shape; nominal dtype `dtype`. The GIL is taken.
at::Tensor make_quantized_tensor(const at::Tensor& tensor, at::IntArrayRef sizes,
                                 at::ScalarType dtype, const std::shared_ptr<Quantizer>& quantizer);
// factory(copy (read_operand.h), shape, dtype, the quantizer's native object) -> Tensor
void set_quantized_tensor_factory(PyObject* factory);

}  // namespace transformer_engine::pytorch
