// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The products of one linear layer that ranks may share: what is gathered before and summed after.
// On one rank each function is the product itself.
#pragma once

#include "steps/linear_part.h"
#include "steps/sharding.h"

namespace transformer_engine::pytorch {

// A layer's input as fprop reads it, and what to keep of it for backward.
struct LayerInput {
  Operand operand;           // of all rows
  Operand shard;             // of this rank's rows, where backward starts from those
  bool keeps_plain = false;  // and from the tensor before quantization
  at::Tensor gathered;       // all rows in high precision, where those were gathered

  bool is_shard() const { return shard.is_defined(); }
  const Operand& kept() const { return is_shard() ? shard : operand; }
  void save(SavedLinear* saved, const CallState& state, const at::Tensor& original,
            bool keeps_original) const {
    saved->save_input(state, kept(), original, keeps_original || keeps_plain);
    saved->is_shard = is_shard();
  }
};
// What a layer reads of its input: the usages of its operand, and its quantizer for this rank's
// rows. `gathers_plain`: all rows are wanted in high precision, too.
ShardedCast input_cast(const CallState& state, const LinearSpec& spec, int64_t rows,
                       bool needs_wgrad, bool gathers_plain);
// `local`: of this rank's rows, by the quantizer of the cast.
LayerInput gather_input(const ShardedCast& cast, const CallState& state, const LinearSpec& spec,
                        Operand local, bool needs_wgrad);

// fprop for a layer whose ranks may each have a part of the sum: y of these sizes, bias included.
struct OutputRequest {
  at::ScalarType dtype;
  at::IntArrayRef sizes;
  bool is_fast;  // GemmFlags
};
at::Tensor layer_output(const Sharding& sharding, const Operand& input, const Operand& weight,
                        const at::Tensor& bias, const OutputRequest& request);

// dgrad, with the sum over ranks under way where there is one.
class PendingDgrad {
 public:
  PendingDgrad() = default;
  PendingDgrad(at::Tensor gradient) : gradient_(std::move(gradient)) {}  // NOLINT: no sum
  PendingDgrad(Pending sum, at::Tensor addend, at::ScalarType dtype)
      : sum_(std::move(sum)), addend_(std::move(addend)), dtype_(dtype) {}
  at::Tensor wait();

 private:
  at::Tensor gradient_;
  Pending sum_;
  at::Tensor addend_;
  at::ScalarType dtype_ = at::kFloat;
};
// Added before rounding when defined: [m, in] of the gradient's rows, or of all ranks' rows.
struct DgradAddend {
  at::Tensor tensor;
  bool is_whole = false;
};
// `is_fast`: GemmFlags.
PendingDgrad start_dgrad(const Sharding& sharding, const Operand& grad_output,
                         const Operand& weight, at::ScalarType dtype, const DgradAddend& addend,
                         bool is_fast);

}  // namespace transformer_engine::pytorch
