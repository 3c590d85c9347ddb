// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "autograd_node.h"
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

// One copy of an operand, kept through autograd's own saved variables, so that saved-tensor hooks,
// version checks and retain_graph act on it as on any tensor.
class SavedCopy {
 public:
  void save(const OperandCopy& copy, bool is_output) {
    if (!copy.is_defined()) {
      return;
    }
    data_ = torch::autograd::SavedVariable(copy.data, is_output);
    has_scale_ = copy.scale_inv.defined();
    if (has_scale_) {
      scale_inv_ = torch::autograd::SavedVariable(copy.scale_inv, false);
    }
    has_amax_ = copy.amax.defined();
    if (has_amax_) {
      amax_ = torch::autograd::SavedVariable(copy.amax, false);
    }
    format_ = copy.format;
    is_saved_ = true;
  }
  bool is_saved() const { return is_saved_; }

  OperandCopy unpack(torch::autograd::Node* node) const {
    OperandCopy copy;
    if (is_saved_) {
      copy.format = format_;
      copy.data = unpack_saved(data_, node);
      if (has_scale_) {
        copy.scale_inv = unpack_saved(scale_inv_);
      }
      if (has_amax_) {
        copy.amax = unpack_saved(amax_);
      }
    }
    return copy;
  }

  void reset() {
    data_.reset_data();
    scale_inv_.reset_data();
    amax_.reset_data();
  }

 private:
  torch::autograd::SavedVariable data_, scale_inv_, amax_;
  CopyFormat format_;
  bool is_saved_ = false;
  bool has_scale_ = false;
  bool has_amax_ = false;
};

// An operand kept for backward.
class SavedOperand {
 public:
  // `is_output`: the (high-precision) tensor is an output of the saving node.
  void save(const Operand& operand, bool is_output = false) {
    rowwise_.save(operand.rowwise, is_output);
    columnwise_.save(operand.columnwise, /*is_output=*/false);
    sizes_ = operand.sizes;
  }
  bool is_saved() const { return rowwise_.is_saved() || columnwise_.is_saved(); }

  // Undefined when nothing was saved.
  Operand unpack(torch::autograd::Node* node) const {
    Operand operand;
    operand.rowwise = rowwise_.unpack(node);
    operand.columnwise = columnwise_.unpack(node);
    operand.sizes = sizes_;
    return operand;
  }

  void reset() {
    rowwise_.reset();
    columnwise_.reset();
  }

 private:
  SavedCopy rowwise_, columnwise_;
  MatrixSizes sizes_;
};

}  // namespace transformer_engine::pytorch
