// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/attention.h by cuDNN. A plan is made once per problem, thread and
// device; a steady-state call writes the lengths of its sequences, runs the plan and clears what
// lies outside the sequences: no query, no allocation outside the framework's cache, no host
// synchronisation.
#include <transformer_engine/attention.h>
#include <transformer_engine/error.h>

#include <limits>

#include "cuda/attention/cache.h"
#include "cuda/attention/call.h"
#include "cuda/attention/cudnn.h"
#include "cuda/attention/plan.h"
#include "cuda/attention/rules.h"
#include "cuda/attention/sequences.h"
#include "cuda/attention_support.h"
#include "cuda/candidate.h"

namespace transformer_engine::cuda {

namespace {

constexpr char kForward[] = "attention_forward";
constexpr char kBackward[] = "attention_backward";
constexpr int64_t kElementBytes = 2;

template <typename Args>
constexpr bool kIsBackward = std::is_same_v<Args, AttentionBackwardArgs>;

// ---- one call

// Lengths are given where sequences have some, and where cuDNN's backward needs them: up to 9.15.0
// it takes a number of keys that is no multiple of 128 with lengths alone.
bool needs_lengths(const AttentionProblem& problem, bool is_backward) {
  return problem.has_lengths ||
         (is_backward && problem.keys % 128 != 0 && cudnn_version() <= 91500);
}

bool has_wide_starts(const AttentionProblem& problem, const StartsTable& starts) {
  for (int i = 0; i < starts.count(); ++i) {
    const int64_t tokens = starts.at(i).is_query ? problem.tokens_q : problem.tokens_kv;
    if (tokens * starts.at(i).token_stride > std::numeric_limits<int32_t>::max()) {
      return true;
    }
  }
  return false;
}

// The next number with three leading bits: so that batches of about the same size share a plan.
int64_t rounded_up(int64_t tokens) {
  int64_t unit = 1;
  while (tokens / unit >= 8) {
    unit *= 2;
  }
  return (tokens + unit - 1) / unit * unit;
}

PlanOptions options_of(const AttentionProblem& problem, const StartsTable& starts, bool is_backward,
                       const Context& context) {
  return {.compute_capability = compute_capability(context.device_index),
          .is_backward = is_backward,
          .has_lengths = needs_lengths(problem, is_backward),
          .has_wide_starts = has_wide_starts(problem, starts),
          .most_tokens_q = is_backward ? rounded_up(problem.tokens_q) : 0,
          .most_tokens_kv = is_backward ? rounded_up(problem.tokens_kv) : 0};
}

template <typename Args>
PlanKey key_of(const Args& args, const PlanOptions& options, int device) {
  PlanKey key;
  key.add(int64_t{device});
  key.add(args.problem);
  key.add(options);
  for (const HeadsView* view : {&args.inputs.q, &args.inputs.k, &args.inputs.v, &args.o}) {
    key.add(*view);
  }
  if (args.problem.has_bias) {
    key.add(args.inputs.bias);
  }
  if constexpr (kIsBackward<Args>) {
    for (const HeadsView* view : {&args.grad_o, &args.grad_q, &args.grad_k, &args.grad_v}) {
      key.add(*view);
    }
    key.add(int64_t{args.grad_bias.data != nullptr});
    if (args.grad_bias.data != nullptr) {
      key.add(args.grad_bias);
    }
  }
  return key;
}

template <typename Args>
const PlanOrReason& find_plan(const Args& args, const PlanOptions& options, int device) {
  return plans().find(key_of(args, options, device), [&] { return make_plan(args, options); });
}

template <typename Args>
void find_and_run(const char* op, const Args& args, Pointers& pointers, const Context& context) {
  const StartsTable starts(args);
  const PlanOptions options = options_of(args.problem, starts, kIsBackward<Args>, context);
  run_plan({.op = op,
            .problem = args.problem,
            .inputs = args.inputs,
            .starts = starts,
            .options = options},
           find_plan(args, options, context.device_index), pointers, context);
}

void clear_outside(const AttentionProblem& problem, const AttentionSequences& sequences,
                   const ClearTarget& target, const Context& context) {
  if (problem.has_lengths) {
    clear_outside_sequences(problem, sequences, target, context);
  }
}

void run_forward(const AttentionForwardArgs& args, const Context& context) {
  const AttentionProblem& problem = args.problem;
  Pointers pointers{};
  set_results(pointers, args);
  find_and_run(kForward, args, pointers, context);
  clear_outside(problem, args.inputs.sequences, {args.o, true, problem.heads, problem.size_v},
                context);
}

// cuDNN adds to the gradient of a bias that is shared.
void clear_bias_gradient(const AttentionBackwardArgs& args, const Context& context) {
  if (args.grad_bias.data == nullptr) {
    return;
  }
  const AttentionProblem& problem = args.problem;
  const int64_t bytes =
      problem.bias_batch * problem.bias_heads * problem.queries * problem.keys * kElementBytes;
  set_to_zero(kBackward, args.grad_bias.data, bytes, context);
}

void run_backward(const AttentionBackwardArgs& args, const Context& context) {
  const AttentionProblem& problem = args.problem;
  Pointers pointers{};
  set_gradients(pointers, args);
  at(pointers, Role::kGradBias) = args.grad_bias.data;
  clear_bias_gradient(args, context);
  find_and_run(kBackward, args, pointers, context);
  const AttentionSequences& sequences = args.inputs.sequences;
  clear_outside(problem, sequences, {args.grad_q, true, problem.heads, problem.size_qk}, context);
  clear_outside(problem, sequences, {args.grad_k, false, problem.groups, problem.size_qk}, context);
  clear_outside(problem, sequences, {args.grad_v, false, problem.groups, problem.size_v}, context);
}

}  // namespace

const char* fused_attention_refusal(const AttentionProblem& problem, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const char* const library = cudnn_refusal();
  if (library != nullptr) {
    return library;
  }
  return reason_against(problem, {.compute_capability = compute_capability(context.device_index),
                                  .version = cudnn_version()});
}

void append_attention_status(std::vector<BackendStatus>& statuses) {
  const char* const refusal = cudnn_refusal();
  if (refusal != nullptr) {
    statuses.push_back({"cuDNN", false, refusal,
                        "fused attention on CUDA tensors (torch's is used)",
                        "install a CUDA build of torch, or cuDNN 9.7 or later"});
    return;
  }
  statuses.push_back({concat("cuDNN ", cudnn_version()), true, "", "", ""});
}

template <>
const char* EntryPoint<AttentionForwardArgs>::refusal(const AttentionForwardArgs& args,
                                                      const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DType dtype = args.problem.dtype;
  const char* const reason = refusal_of_tensors(
      {{args.inputs.q, dtype}, {args.inputs.k, dtype}, {args.inputs.v, dtype}, {args.o, dtype}},
      context);
  return reason != nullptr ? reason : fused_attention_refusal(args.problem, context);
}
template <>
void EntryPoint<AttentionForwardArgs>::run(const AttentionForwardArgs& args,
                                           const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  run_forward(args, context);
}

template <>
const char* EntryPoint<AttentionBackwardArgs>::refusal(const AttentionBackwardArgs& args,
                                                       const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DType dtype = args.problem.dtype;
  const char* const reason = refusal_of_tensors({{args.inputs.q, dtype},
                                                 {args.inputs.k, dtype},
                                                 {args.inputs.v, dtype},
                                                 {args.o, dtype},
                                                 {args.grad_o, dtype},
                                                 {args.grad_q, dtype},
                                                 {args.grad_k, dtype},
                                                 {args.grad_v, dtype}},
                                                context);
  return reason != nullptr ? reason : fused_attention_refusal(args.problem, context);
}
const char* fused_attention_backward_refusal(const AttentionBackwardArgs& args,
                                             const Context& context) {
  const char* const refusal = EntryPoint<AttentionBackwardArgs>::refusal(args, context);
  if (refusal != nullptr) {
    return refusal;
  }
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  const PlanOptions options = options_of(args.problem, StartsTable(args), true, context);
  const PlanOrReason& made = find_plan(args, options, context.device_index);
  return made.plan == nullptr ? made.reason.c_str() : nullptr;
}

template <>
void EntryPoint<AttentionBackwardArgs>::run(const AttentionBackwardArgs& args,
                                            const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  run_backward(args, context);
}

}  // namespace transformer_engine::cuda
