// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Attention by the core's op (transformer_engine/attention.h) as one autograd node.
#pragma once

#include <ATen/core/Tensor.h>
#include <transformer_engine/attention.h>

#include <optional>
#include <string>

#include "steps/attention_tensors.h"

namespace transformer_engine::pytorch {

// One kind of attention, resolved once; run with tensors.
class FusedAttention {
 public:
  // `problem`: sizes are filled in from the tensors; a bias is told by its tensor.
  FusedAttention(AttentionFormat format, const AttentionProblem& problem)
      : format_(format), problem_(problem) {}

  struct Call {
    at::Tensor q, k, v;  // [s, b, h, d], [b, s, h, d] or [t, h, d]
    // int32 [b + 1] on the tensors' device, where the problem has lengths; padded: thd, or
    // undefined.
    at::Tensor cu_q, cu_kv, cu_q_padded, cu_kv_padded;
    at::Tensor bias;                // [1 or b, 1 or h, s_q, s_kv] or undefined
    int64_t queries = 0, keys = 0;  // thd: of the longest sequences
  };
  // [.., h * d_v]. Nothing where no implementation takes the problem, or its backward; reason()
  // then says why. The GIL is held and released while computing.
  std::optional<at::Tensor> run(const Call& call);
  const std::string& reason() const { return reason_; }

  const AttentionProblem& problem() const { return problem_; }

 private:
  AttentionFormat format_;
  AttentionProblem problem_;
  std::string reason_;
};

}  // namespace transformer_engine::pytorch
