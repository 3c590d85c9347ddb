// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FP8 attention by the core's op (transformer_engine/attention.h), forward and backward apart: what
// records them, and what makes codes of tensors, is above.
#pragma once

#include <ATen/core/Tensor.h>
#include <transformer_engine/attention.h>

#include <array>
#include <optional>
#include <string>

#include "steps/attention_tensors.h"

namespace transformer_engine::pytorch {

// One kind of attention, resolved once; run with tensors. Scales are FP32 of one element on the
// tensors' device; FP8 codes are uint8.
class Float8Attention {
 public:
  // `problem`: its dtype is that of Q, K and V; sizes are filled in from the tensors. Not thd.
  Float8Attention(AttentionFormat format, const AttentionProblem& problem,
                  const AttentionFp8Types& types)
      : format_(format), problem_(problem), types_(types) {}

  struct Inputs {
    at::Tensor q, k, v;      // [s, b, h, d] or [b, s, h, d]
    at::Tensor cu_q, cu_kv;  // int32 [b + 1], where the problem has lengths
    at::Tensor descale_q, descale_k, descale_v, scale_s, descale_s;
  };

  struct ForwardCall {
    Inputs inputs;
    at::Tensor scale_o;  // undefined where O has 16 bits
    bool is_training = false;
  };
  struct ForwardResult {
    at::Tensor o;           // contiguous
    at::Tensor statistics;  // FP32 [b, h, s_q, 1], of training
    at::Tensor amax_s, amax_o;
  };
  // Nothing where no implementation takes the problem, or, in training, its backward; reason() then
  // says why. The GIL is held and released while computing.
  std::optional<ForwardResult> forward(const ForwardCall& call);

  struct BackwardCall {
    Inputs inputs;
    at::Tensor o, grad_o;  // [.., h, d_v]
    at::Tensor statistics;
    at::Tensor descale_o;  // undefined where O has 16 bits
    at::Tensor descale_grad_o, scale_dp, descale_dp;
    at::Tensor scale_dq, scale_dk, scale_dv;  // undefined where gradients have 16 bits
  };
  struct BackwardResult {
    at::Tensor dq, dk, dv;           // contiguous
    std::array<at::Tensor, 4> amax;  // of dQ, dK, dV and dS
  };
  std::optional<BackwardResult> backward(const BackwardCall& call);

  const std::string& reason() const { return reason_; }
  void set_reason(std::string reason) { reason_ = std::move(reason); }
  const AttentionProblem& problem() const { return problem_; }
  const AttentionFp8Types& types() const { return types_; }

 private:
  AttentionProblem problem_of(const Inputs& inputs) const;
  AttentionInputs inputs_of(const Inputs& inputs) const;
  AttentionFp8ForwardArgs forward_args(const ForwardCall& call, const AttentionProblem& problem,
                                       const ForwardResult& result) const;
  AttentionFp8BackwardArgs backward_args(const BackwardCall& call, const AttentionProblem& problem,
                                         const BackwardResult& result) const;
  std::string refusal_of_backward(const ForwardCall& call, const AttentionFp8ForwardArgs& args,
                                  const Context& context) const;
  bool is_empty(const Inputs& inputs);

  AttentionFormat format_;
  AttentionProblem problem_;
  AttentionFp8Types types_;
  std::string reason_;
};

}  // namespace transformer_engine::pytorch
