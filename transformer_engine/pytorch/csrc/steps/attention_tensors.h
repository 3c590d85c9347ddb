// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tensors of heads as the core's attention reads them.
#pragma once

#include <ATen/core/Tensor.h>
#include <transformer_engine/attention.h>

#include <string>

namespace transformer_engine::pytorch {

// [s, b, h, d], [b, s, h, d] or [t, h, d].
enum class AttentionFormat { kSbhd, kBshd, kThd };

// [b, h, s, d] strides of a tensor in one of the formats.
HeadsView heads_view(const at::Tensor& x, AttentionFormat format);
// Of a contiguous result with the sizes of `x`, which has no memory yet.
HeadsView future_view(const at::Tensor& x, AttentionFormat format);

// As it is where implementations can read it: elements side by side, the rest at multiples of 16
// bytes; else a copy.
at::Tensor readable(const at::Tensor& x);

// Fills in the sizes of heads, and of formats other than thd those of sequences.
void set_sizes(AttentionProblem& problem, AttentionFormat format, const at::Tensor& q,
               const at::Tensor& k, const at::Tensor& v);

// ValueError for cumulative lengths that are defined and not int32 [batch + 1] beside `q`.
void check_cumulative(const std::string& label, const at::Tensor& cu, int64_t batch,
                      const at::Tensor& q);
// Null for an undefined tensor.
const int32_t* lengths_data(const at::Tensor& cu);

}  // namespace transformer_engine::pytorch
