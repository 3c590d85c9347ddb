// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "operand.h"

namespace transformer_engine::pytorch {

// Unpacks with autograd recording and torch.autocast at work, even inside a step: a saved-tensor
// hook may run any code, and a checkpoint repeats the forward in it.
inline at::Tensor unpack_saved(const torch::autograd::SavedVariable& saved,
                               torch::autograd::Node* node = nullptr) {
  const auto state = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard recording(
      state.included_, state.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
                           c10::autocast_dispatch_keyset);
  return node == nullptr ? saved.unpack() : saved.unpack(node->getptr());
}

// An operand kept for backward through autograd's own saved variables, so that saved-tensor hooks,
// version checks and retain_graph act on it as on any tensor.
class SavedOperand {
 public:
  // `is_output`: the tensor is an output of the saving node.
  void save(const Operand& operand, bool is_output = false) {
    data_ = torch::autograd::SavedVariable(operand.data, is_output);
    if (operand.is_quantized()) {
      scale_inv_ = torch::autograd::SavedVariable(operand.scale_inv, false);
    }
    dtype_ = operand.dtype;
    is_saved_ = true;
    is_quantized_ = operand.is_quantized();
  }
  bool is_saved() const { return is_saved_; }

  Operand unpack(torch::autograd::Node* node) const {
    if (!is_saved_) {
      return {};
    }
    Operand operand;
    operand.data = unpack_saved(data_, node);
    if (is_quantized_) {
      operand.scale_inv = unpack_saved(scale_inv_);
    }
    operand.dtype = dtype_;
    return operand;
  }

  void reset() {
    data_.reset_data();
    scale_inv_.reset_data();
  }

 private:
  torch::autograd::SavedVariable data_;
  torch::autograd::SavedVariable scale_inv_;
  DType dtype_ = DType::kFloat32;
  bool is_saved_ = false;
  bool is_quantized_ = false;
};

}  // namespace transformer_engine::pytorch
