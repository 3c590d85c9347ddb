// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/attention_part.h"

#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <pybind11/pybind11.h>

#include "allocate.h"
#include "steps/linear_part.h"
#include "steps/node_support.h"
#include "steps/saved_operand.h"

namespace py = pybind11;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace transformer_engine::pytorch {

namespace {

constexpr int64_t kFlashKernel = 1;  // at::SDPBackend::flash_attention

// [s, b, h, d] or [b, s, h, d] as [b, h, s, d], and back: the same exchange of dimensions serves
// both ways for bshd, two different ones for sbhd.
at::Tensor heads_first(const at::Tensor& x, bool is_sbhd) {
  const auto sizes = x.sizes(), strides = x.strides();
  const int s = is_sbhd ? 0 : 1;
  const int b = 1 - s;
  return at::cpu::as_strided(x, {sizes[b], sizes[2], sizes[s], sizes[3]},
                             {strides[b], strides[2], strides[s], strides[3]});
}

at::Tensor heads_third(const at::Tensor& x, bool is_sbhd) {
  const auto sizes = x.sizes(), strides = x.strides();
  const int first = is_sbhd ? 2 : 0;
  const int second = 2 - first;
  return at::cpu::as_strided(x, {sizes[first], sizes[second], sizes[1], sizes[3]},
                             {strides[first], strides[second], strides[1], strides[3]});
}

// [b, h, s, d] -> [s, b, h * d] or [b, s, h * d]: a view of what the kernel lays out as [b, s, h,
// d].
at::Tensor merge_heads(const at::Tensor& out, bool is_sbhd) {
  const at::Tensor x = heads_third(out, is_sbhd);
  const auto sizes = x.sizes(), strides = x.strides();
  if (strides[3] != 1 || strides[2] != sizes[3]) {
    return x.reshape({sizes[0], sizes[1], sizes[2] * sizes[3]});
  }
  return at::cpu::as_strided(x, {sizes[0], sizes[1], sizes[2] * sizes[3]},
                             {strides[0], strides[1], 1});
}

// Back to [b, h, s, d]; `x` has the shape that merge_heads returns.
at::Tensor unmerge_heads(const at::Tensor& x, int64_t heads, bool is_sbhd) {
  const at::Tensor dense = x.stride(2) == 1 ? x : x.contiguous();
  const int64_t size = dense.size(2) / heads;
  const at::Tensor split = at::cpu::as_strided(dense, {dense.size(0), dense.size(1), heads, size},
                                               {dense.stride(0), dense.stride(1), size, 1});
  return heads_first(split, is_sbhd);
}

// Edges: query, key, value.
struct AttentionNode : public torch::autograd::Node {
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* const saved : {&query, &key, &value, &output, &log_sum}) {
      saved->reset_data();
    }
  }
  std::string name() const override { return "AttentionBackward"; }

  SavedVariable query, key, value, output, log_sum;
  bool is_sbhd = true;
  bool is_causal = false;
  double scale = 1.0;
};

variable_list AttentionNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(num_outputs());
  if (is_without_gradient(grads)) {
    return result;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const PlainOperators plain;
    const at::Tensor q = heads_first(unpack_saved(query), is_sbhd);
    const at::Tensor k = heads_first(unpack_saved(key), is_sbhd);
    const at::Tensor v = heads_first(unpack_saved(value), is_sbhd);
    const at::Tensor out = unmerge_heads(unpack_saved(output, this), q.size(1), is_sbhd);
    const at::Tensor grad = unmerge_heads(as_plain(grads[0]), q.size(1), is_sbhd);
    const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, unpack_saved(log_sum), /*dropout_p=*/0.0, is_causal,
        /*attn_mask=*/{}, scale);
    size_t i = 0;
    for (const at::Tensor* const gradient : {&grad_q, &grad_k, &grad_v}) {
      if (task_should_compute_output(i)) {
        result[i] = heads_third(*gradient, is_sbhd);
      }
      ++i;
    }
  }
  return once_differentiable(*this, grads, std::move(result));
}

// Where part `index` of the heads lies in `mixed`: [.., groups, part, size] interleaved, else
// [.., groups * part, size].
at::Tensor part_of(const at::Tensor& mixed, const SplitHeadsArgs& args, size_t index) {
  int64_t before = 0;
  int64_t total = 0;
  for (size_t i = 0; i < args.count; ++i) {
    before += i < index ? args.parts[i] : 0;
    total += args.parts[i];
  }
  const int64_t part = args.parts[index];
  const auto leading = static_cast<size_t>(mixed.dim() - 1);
  c10::SmallVector<int64_t, 5> sizes(mixed.sizes().begin(), mixed.sizes().begin() + leading);
  c10::SmallVector<int64_t, 5> strides(mixed.strides().begin(), mixed.strides().begin() + leading);
  int64_t offset = mixed.storage_offset();
  if (args.is_interleaved) {
    sizes.insert(sizes.end(), {args.groups, part, args.size});
    strides.insert(strides.end(), {total * args.size, args.size, 1});
    offset += before * args.size;
  } else {
    sizes.insert(sizes.end(), {args.groups * part, args.size});
    strides.insert(strides.end(), {args.size, 1});
    offset += before * args.groups * args.size;
  }
  return at::cpu::as_strided(mixed, sizes, strides, offset);
}

// [.., groups, part, size] -> [.., groups * part, size], a view where one exists.
at::Tensor join_groups(const at::Tensor& x) {
  const auto sizes = x.sizes(), strides = x.strides();
  const auto leading = static_cast<size_t>(x.dim() - 3);
  c10::SmallVector<int64_t, 5> joined(sizes.begin(), sizes.begin() + leading);
  joined.insert(joined.end(), {sizes[leading] * sizes[leading + 1], sizes[leading + 2]});
  const bool is_one = sizes[leading + 1] == 1;
  if (!is_one && sizes[leading] != 1 &&
      strides[leading] != sizes[leading + 1] * strides[leading + 1]) {
    return x.reshape(joined);
  }
  c10::SmallVector<int64_t, 5> steps(strides.begin(), strides.begin() + leading);
  steps.insert(steps.end(), {strides[is_one ? leading : leading + 1], 1});
  return at::cpu::as_strided(x, joined, steps);
}

// The gradient [.., groups * part, size] in the shape of `part`; splitting a dimension takes no
// copy.
at::Tensor split_like(const at::Tensor& gradient, const at::Tensor& part) {
  const at::Tensor x =
      is_python_tensor(gradient) || gradient.is_neg() ? as_plain(gradient) : gradient;
  if (x.dim() == part.dim()) {
    return x;
  }
  const auto leading = static_cast<size_t>(x.dim() - 2);
  const int64_t step = x.stride(-2);
  c10::SmallVector<int64_t, 5> strides(x.strides().begin(), x.strides().begin() + leading);
  strides.insert(strides.end(), {part.size(-2) * step, step, x.stride(-1)});
  return at::cpu::as_strided(x, part.sizes(), strides);
}

// Edge: mixed. One gradient arrives per part.
struct SplitHeadsNode : public torch::autograd::Node {
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {}
  std::string name() const override { return "SplitHeadsBackward"; }

  SplitHeadsArgs args;  // without the tensor
  c10::SmallVector<int64_t, 4> sizes;
};

variable_list SplitHeadsNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(num_outputs());
  if (is_without_gradient(grads)) {
    return result;
  }
  {
    const PlainOperators plain;
    const at::Tensor* const given = grads[0].defined()   ? &grads[0]
                                    : grads[1].defined() ? &grads[1]
                                                         : &grads[2];
    result[0] = new_tensor(sizes, given->scalar_type(), *given);
    for (size_t i = 0; i < args.count; ++i) {
      at::Tensor part = part_of(result[0], args, i);
      if (grads[i].defined()) {
        part.copy_(split_like(grads[i], part));
      } else {
        part.zero_();
      }
    }
  }
  return once_differentiable(*this, grads, std::move(result));
}

}  // namespace

std::optional<at::Tensor> attend(const AttendArgs& args) {
  const auto& [query, key, value] = args.operands;
  for (const at::Tensor& operand : args.operands) {
    if (!operand.is_cpu() || operand.dim() != 4 || operand.scalar_type() != query.scalar_type()) {
      return std::nullopt;
    }
  }
  EdgeList edges;
  for (const at::Tensor& operand : args.operands) {
    edges.add(operand);
  }
  const py::gil_scoped_release no_gil;
  const bool needs_node = edges.are_recorded();
  const PlainOperators plain;
  const at::Tensor q = heads_first(query, args.is_sbhd);
  const at::Tensor k = heads_first(key, args.is_sbhd);
  const at::Tensor v = heads_first(value, args.is_sbhd);
  if (at::_fused_sdp_choice(q, k, v, {}, 0.0, args.is_causal, args.scale) != kFlashKernel) {
    return std::nullopt;
  }
  const auto [out, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, /*dropout_p=*/0.0, args.is_causal, /*attn_mask=*/{}, args.scale);
  at::Tensor output = merge_heads(out, args.is_sbhd);
  if (needs_node) {
    auto node = new_node<AttentionNode>();
    node->set_next_edges(edges.take());
    node->is_sbhd = args.is_sbhd;
    node->is_causal = args.is_causal;
    node->scale = args.scale;
    node->query = SavedVariable(query, false);
    node->key = SavedVariable(key, false);
    node->value = SavedVariable(value, false);
    node->log_sum = SavedVariable(log_sum, false);
    attach_output(output, node);
    node->output = SavedVariable(output, true);
  }
  return output;
}

std::optional<std::array<at::Tensor, 3>> split_heads(const SplitHeadsArgs& args) {
  const at::Tensor& mixed = args.mixed;
  int64_t heads = 0;
  for (size_t i = 0; i < args.count; ++i) {
    heads += args.parts[i] * args.groups;
  }
  if (!mixed.is_cpu() || mixed.dim() < 1 || mixed.dim() > 3 || mixed.numel() == 0 ||
      mixed.stride(-1) != 1 || mixed.size(-1) != heads * args.size) {
    return std::nullopt;
  }
  EdgeList edges;
  edges.add(mixed);
  const py::gil_scoped_release no_gil;
  const bool needs_node = edges.are_recorded();
  const PlainOperators plain;
  std::array<at::Tensor, 3> results;
  for (size_t i = 0; i < args.count; ++i) {
    const at::Tensor part = part_of(mixed, args, i);
    results[i] = args.is_interleaved ? join_groups(part) : part;
  }
  if (needs_node) {
    auto node = new_node<SplitHeadsNode>();
    node->set_next_edges(edges.take());
    node->args = args;
    node->args.mixed.reset();
    node->sizes.assign(mixed.sizes().begin(), mixed.sizes().end());
    for (size_t i = 0; i < args.count; ++i) {
      attach_output(results[i], node);
    }
  }
  return results;
}

}  // namespace transformer_engine::pytorch
