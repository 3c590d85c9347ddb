// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Attention around torch's fused CPU operator, each function one autograd node:
//   split_heads  mixed projections [.., c] -> query, key, value [.., heads, d], views of them
//   attend       softmax(scale * Q K^T [, causal]) V on [s, b, h, d] or [b, s, h, d], heads
//                flattened in the result
// Composed of torch's own operators the same takes 16 of them, each with a node.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

namespace transformer_engine::pytorch {

struct AttendArgs {
  std::array<at::Tensor, 3> operands;  // query, key, value: 4 dimensions, any strides
  bool is_sbhd = true;
  bool is_causal = false;  // query i sees keys <= i
  double scale = 1.0;
};
// Nothing where torch would choose another kernel than its fused CPU one (its choice is asked:
// devices, dtypes, head sizes, empty tensors, torch.nn.attention.sdpa_kernel): the caller then
// calls the public operator. The GIL is held and released while computing.
std::optional<at::Tensor> attend(const AttendArgs& args);

struct SplitHeadsArgs {
  at::Tensor mixed;  // [.., groups * sum(parts) * size]
  int64_t groups = 1;
  int64_t size = 1;            // of a head
  bool is_interleaved = true;  // [.., groups, sum(parts), size]; else the parts one after another
  std::array<int64_t, 3> parts{};  // heads of a part per group
  size_t count = 0;                // of parts
};
// One [.., groups * part, size] for each part: a view where the layout allows it, else a copy.
// Nothing where `mixed` has gaps in its last dimension or another size.
std::optional<std::array<at::Tensor, 3>> split_heads(const SplitHeadsArgs& args);

}  // namespace transformer_engine::pytorch
