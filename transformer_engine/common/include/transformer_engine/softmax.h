// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Softmax of attention scores over the last axis, y = softmax(scale * x) on the visible columns,
// FP32 inside, rounded once. Invisible columns give exactly 0; a row without any visible column is
// all 0.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

enum class SoftmaxMask : int32_t {
  kNone = 0,           // every column visible
  kPadding = 1,        // `mask` byte != 0 hides a column
  kCausal = 2,         // query i sees columns <= i (top-left)
  kCausalAligned = 3,  // query i sees columns <= i + keys - queries (bottom-right)
};

// Scores are [batch, heads, queries, keys], contiguous; the view is [batch*heads*queries, keys].
struct SoftmaxForwardArgs {
  SoftmaxMask mask_kind = SoftmaxMask::kNone;
  TensorView input;
  TensorView output;  // same shape; FP32, BF16 or FP16
  float scale = 1.0F;
  int64_t batch = 1, heads = 1, queries = 1;
  const uint8_t* mask = nullptr;  // kPadding: [mask_batch, 1, queries, keys] bytes
  int64_t mask_batch = 1;         // 1 or batch
};
void softmax_forward(const SoftmaxForwardArgs& args, const Context& context);

// grad_input = scale * (grad_output - sum(grad_output * output)) * output
struct SoftmaxBackwardArgs {
  TensorView grad_output, output, grad_input;  // [rows, keys]
  float scale = 1.0F;
};
void softmax_backward(const SoftmaxBackwardArgs& args, const Context& context);

}  // namespace transformer_engine
