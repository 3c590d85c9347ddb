// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/fused_attention.h"

#include <pybind11/pybind11.h>
#include <transformer_engine/error.h>

#include "allocate.h"
#include "steps/linear_part.h"
#include "steps/node_support.h"
#include "steps/saved_operand.h"
#include "views.h"

namespace py = pybind11;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace transformer_engine::pytorch {

namespace {

HeadsView bias_view(const at::Tensor& bias) {
  return {bias.data_ptr(), bias.stride(0), bias.stride(1), bias.stride(2)};
}

// What both passes read.
struct Tensors {
  at::Tensor q, k, v, bias, cu_q, cu_kv, cu_q_padded, cu_kv_padded;
  at::Tensor random;  // int64 [4]: a seed, and at 16 bytes an offset

  AttentionInputs inputs(AttentionFormat format) const {
    AttentionInputs inputs;
    inputs.q = heads_view(q, format);
    inputs.k = heads_view(k, format);
    inputs.v = heads_view(v, format);
    if (bias.defined()) {
      inputs.bias = bias_view(bias);
    }
    inputs.sequences = {lengths_data(cu_q), lengths_data(cu_kv), lengths_data(cu_q_padded),
                        lengths_data(cu_kv_padded)};
    if (random.defined()) {
      inputs.seed = static_cast<const int64_t*>(random.data_ptr());
      inputs.offset = inputs.seed + 2;
    }
    return inputs;
  }
};

// Edges: query, key, value, bias.
struct FusedAttentionNode : public torch::autograd::Node {
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* const saved : {&query, &key, &value, &output, &statistics, &bias, &cu_q,
                                       &cu_kv, &cu_q_padded, &cu_kv_padded, &random}) {
      saved->reset_data();
    }
  }
  std::string name() const override { return "FusedAttentionBackward"; }

  Tensors unpack() {
    Tensors tensors;
    tensors.q = readable(unpack_saved(query));
    tensors.k = readable(unpack_saved(key));
    tensors.v = readable(unpack_saved(value));
    if (problem.has_bias) {
      tensors.bias = unpack_saved(bias);
    }
    if (problem.has_lengths) {
      tensors.cu_q = unpack_saved(cu_q);
      tensors.cu_kv = unpack_saved(cu_kv);
    }
    if (has_padded_lengths) {
      tensors.cu_q_padded = unpack_saved(cu_q_padded);
      tensors.cu_kv_padded = unpack_saved(cu_kv_padded);
    }
    if (problem.dropout > 0.0F) {
      tensors.random = unpack_saved(random);
    }
    return tensors;
  }

  SavedVariable query, key, value, output, statistics, bias;
  SavedVariable cu_q, cu_kv, cu_q_padded, cu_kv_padded, random;
  AttentionFormat format = AttentionFormat::kSbhd;
  AttentionProblem problem;
  bool has_padded_lengths = false;
};

variable_list FusedAttentionNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(num_outputs());
  if (is_without_gradient(grads)) {
    return result;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const PlainOperators plain;
    const Tensors tensors = unpack();
    const auto sizes = tensors.q.sizes();
    c10::SmallVector<int64_t, 4> split(sizes.begin(), sizes.end());
    split.back() = problem.size_v;
    const at::Tensor out = unpack_saved(output, this).view(split);
    const at::Tensor grad = as_plain(grads[0]).contiguous().view(split);
    const at::Tensor log_sums = unpack_saved(statistics);
    const auto make = [&](const at::Tensor& like) {
      return new_tensor(like.sizes(), like.scalar_type(), like);
    };
    const bool wants_bias = problem.has_bias && task_should_compute_output(3);
    result[0] = make(tensors.q);
    result[1] = make(tensors.k);
    result[2] = make(tensors.v);
    if (wants_bias) {
      result[3] = make(tensors.bias);
    }
    attention_backward({.problem = problem,
                        .inputs = tensors.inputs(format),
                        .o = heads_view(out, format),
                        .grad_o = heads_view(readable(grad), format),
                        .statistics = static_cast<const float*>(log_sums.data_ptr()),
                        .grad_q = heads_view(result[0], format),
                        .grad_k = heads_view(result[1], format),
                        .grad_v = heads_view(result[2], format),
                        .grad_bias = wants_bias ? bias_view(result[3]) : HeadsView{}},
                       context_for(tensors.q));
    for (size_t i = 0; i < 3; ++i) {
      if (!task_should_compute_output(i)) {
        result[i].reset();
      }
    }
  }
  return once_differentiable(*this, grads, std::move(result));
}

bool is_bias_of(const at::Tensor& bias, const at::Tensor& q, const AttentionProblem& problem) {
  return bias.scalar_type() == q.scalar_type() && bias.device() == q.device() && bias.dim() == 4 &&
         (bias.size(0) == 1 || bias.size(0) == problem.batch) &&
         (bias.size(1) == 1 || bias.size(1) == problem.heads) && bias.size(2) == problem.queries &&
         bias.size(3) == problem.keys;
}

// Fills in the sizes; false where a tensor is empty or a bias does not fit.
bool set_problem(AttentionProblem& problem, AttentionFormat format,
                 const FusedAttention::Call& call) {
  const at::Tensor& q = call.q;
  const at::Tensor& k = call.k;
  set_sizes(problem, format, q, k, call.v);
  problem.dtype = dtype_of(q.scalar_type());
  if (format == AttentionFormat::kThd) {
    problem.batch = call.cu_q.numel() - 1;
    problem.queries = call.queries;
    problem.keys = call.keys;
  }
  problem.has_bias = call.bias.defined();
  if (problem.has_bias) {
    problem.bias_batch = call.bias.size(0);
    problem.bias_heads = call.bias.size(1);
  }
  return q.numel() != 0 && k.numel() != 0 && call.v.numel() != 0 && problem.batch > 0 &&
         problem.queries > 0 && problem.keys > 0 &&
         (!problem.has_bias || is_bias_of(call.bias, q, problem));
}

void check_lengths(const FusedAttention::Call& call, const AttentionProblem& problem) {
  for (const at::Tensor* const cu :
       {&call.cu_q, &call.cu_kv, &call.cu_q_padded, &call.cu_kv_padded}) {
    check_cumulative("FusedAttention", *cu, problem.batch, call.q);
  }
  TE_CHECK(!problem.has_lengths || (call.cu_q.defined() && call.cu_kv.defined()),
           "FusedAttention: lengths are missing; cu_q and cu_kv are required.");
}

// What the backward of this call will be given.
AttentionBackwardArgs future_backward(const AttentionForwardArgs& args,
                                      const FusedAttention::Call& call, AttentionFormat format) {
  AttentionBackwardArgs backward{.problem = args.problem,
                                 .inputs = args.inputs,
                                 .o = args.o,
                                 .grad_o = args.o,
                                 .statistics = args.statistics,
                                 .grad_q = future_view(call.q, format),
                                 .grad_k = future_view(call.k, format),
                                 .grad_v = future_view(call.v, format),
                                 .grad_bias = {}};
  if (call.bias.defined() && call.bias.requires_grad()) {
    backward.grad_bias = args.inputs.bias;
  }
  return backward;
}

// The tensors as the op reads them.
Tensors tensors_of(const FusedAttention::Call& call, const AttentionProblem& problem) {
  Tensors tensors;
  tensors.q = readable(call.q);
  tensors.k = readable(call.k);
  tensors.v = readable(call.v);
  if (call.bias.defined()) {
    tensors.bias = call.bias.resolve_neg().contiguous();
  }
  tensors.cu_q = call.cu_q;
  tensors.cu_kv = call.cu_kv;
  tensors.cu_q_padded = call.cu_q_padded;
  tensors.cu_kv_padded = call.cu_kv_padded;
  if (problem.dropout > 0.0F) {
    tensors.random = new_tensor({4}, at::ScalarType::Long, call.q);
    tensors.random.random_();  // from the device's generator: repeatable, and right in a CUDA graph
  }
  return tensors;
}

NodePtr<FusedAttentionNode> make_node(AttentionFormat format, const AttentionProblem& problem,
                                      const FusedAttention::Call& call, const Tensors& tensors) {
  auto node = new_node<FusedAttentionNode>();
  node->format = format;
  node->problem = problem;
  node->has_padded_lengths = call.cu_q_padded.defined() && call.cu_kv_padded.defined();
  node->query = SavedVariable(call.q, false);
  node->key = SavedVariable(call.k, false);
  node->value = SavedVariable(call.v, false);
  if (problem.has_bias) {
    node->bias = SavedVariable(tensors.bias, false);
  }
  if (problem.has_lengths) {
    node->cu_q = SavedVariable(call.cu_q, false);
    node->cu_kv = SavedVariable(call.cu_kv, false);
  }
  if (node->has_padded_lengths) {
    node->cu_q_padded = SavedVariable(call.cu_q_padded, false);
    node->cu_kv_padded = SavedVariable(call.cu_kv_padded, false);
  }
  if (problem.dropout > 0.0F) {
    node->random = SavedVariable(tensors.random, false);
  }
  return node;
}

// Empty when it ran; else why not.
std::string run_forward(const AttentionForwardArgs& args, const AttentionBackwardArgs& backward,
                        const Context& context) {
  if (args.problem.has_statistics) {
    const char* const refusal = attention_backward_refusal(backward, context);
    if (refusal != nullptr) {
      return refusal;
    }
  }
  try {
    attention_forward(args, context);
  } catch (const NotImplementedError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

std::optional<at::Tensor> FusedAttention::run(const Call& call) {
  AttentionProblem problem = problem_;
  problem.is_packed = format_ == AttentionFormat::kThd;
  if (!set_problem(problem, format_, call)) {
    reason_ = "a tensor is empty, or the bias is not one of [b or 1, h or 1, s_q, s_kv]";
    return std::nullopt;
  }
  check_lengths(call, problem);
  EdgeList edges;
  for (const at::Tensor* const operand : {&call.q, &call.k, &call.v, &call.bias}) {
    if (operand->defined()) {
      edges.add(*operand);
    }
  }
  const py::gil_scoped_release no_gil;
  problem.has_statistics = edges.are_recorded();
  const PlainOperators plain;
  const Tensors tensors = tensors_of(call, problem);
  c10::SmallVector<int64_t, 4> sizes(call.q.sizes().begin(), call.q.sizes().end());
  sizes.back() = problem.size_v;
  const at::Tensor out = new_tensor(sizes, call.q.scalar_type(), call.q);
  at::Tensor log_sums;
  if (problem.has_statistics) {
    const int64_t rows = problem.is_packed ? problem.tokens_q : problem.batch * problem.queries;
    log_sums = new_tensor({rows, problem.heads}, at::ScalarType::Float, call.q);
  }
  const AttentionForwardArgs args{
      .problem = problem,
      .inputs = tensors.inputs(format_),
      .o = heads_view(out, format_),
      .statistics = log_sums.defined() ? static_cast<float*>(log_sums.data_ptr()) : nullptr};
  reason_ = run_forward(args, future_backward(args, call, format_), context_for(call.q));
  if (!reason_.empty()) {
    return std::nullopt;
  }
  at::Tensor output = out.flatten(-2);
  if (problem.has_statistics) {
    const auto node = make_node(format_, problem, call, tensors);
    node->set_next_edges(edges.take());
    node->statistics = SavedVariable(log_sums, false);
    attach_output(output, node);
    node->output = SavedVariable(output, true);
  }
  return output;
}

}  // namespace transformer_engine::pytorch
