// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FP8 attention (transformer_engine/attention.h) by cuDNN, as cuda/attention.cpp has that of 16
// bits: one plan per problem, thread and device. Before the plan runs, the largest magnitudes are
// set to 0, which is what they are where there is no token.
#include <transformer_engine/attention.h>
#include <transformer_engine/error.h>

#include "cuda/attention/cache.h"
#include "cuda/attention/call.h"
#include "cuda/attention/cudnn.h"
#include "cuda/attention/rules.h"
#include "cuda/attention/sequences.h"
#include "cuda/attention_support.h"
#include "cuda/candidate.h"

namespace transformer_engine::cuda {

namespace {

PlanOptions options_of(const AttentionProblem& problem, bool is_backward, const Context& context) {
  return {.compute_capability = compute_capability(context.device_index),
          .is_backward = is_backward,
          .has_lengths = problem.has_lengths};
}

PlanKey key_of(const AttentionProblem& problem, const PlanOptions& options,
               std::initializer_list<DType> types, std::initializer_list<const HeadsView*> views,
               int device) {
  PlanKey key;
  key.add(int64_t{device});
  key.add(problem);
  key.add(options);
  for (const DType type : types) {
    key.add(static_cast<int64_t>(type));
  }
  for (const HeadsView* view : views) {
    key.add(*view);
  }
  return key;
}

const PlanOrReason& find_plan(const AttentionFp8ForwardArgs& args, const PlanOptions& options,
                              int device) {
  const PlanKey key = key_of(args.problem, options, {args.types.o},
                             {&args.inputs.q, &args.inputs.k, &args.inputs.v, &args.o}, device);
  return plans().find(key, [&] { return make_plan(args, options); });
}
const PlanOrReason& find_plan(const AttentionFp8BackwardArgs& args, const PlanOptions& options,
                              int device) {
  const PlanKey key =
      key_of(args.problem, options, {args.types.saved_o, args.types.grad_o, args.types.grads},
             {&args.inputs.q, &args.inputs.k, &args.inputs.v, &args.o, &args.grad_o, &args.grad_q,
              &args.grad_k, &args.grad_v},
             device);
  return plans().find(key, [&] { return make_plan(args, options); });
}

void set_number(Pointers& pointers, Role role, const float* number) {
  at(pointers, role) = const_cast<float*>(number);
}

// A tensor of bytes as one of 2-byte elements: its rows and strides are multiples of 16 bytes.
ClearTarget target_of(const HeadsView& view, DType dtype, bool is_query, int64_t heads,
                      int64_t size) {
  const int64_t per_element = 2 / element_size_bytes(dtype);
  return {.view = {.data = view.data,
                   .batch_stride = view.batch_stride / per_element,
                   .head_stride = view.head_stride / per_element,
                   .token_stride = view.token_stride / per_element},
          .is_query = is_query,
          .heads = heads,
          .size = size / per_element};
}

template <typename Args>
void find_and_run(const char* op, const Args& args, Pointers& pointers, const Context& context) {
  constexpr bool kIsBackward = std::is_same_v<Args, AttentionFp8BackwardArgs>;
  constexpr int64_t kMagnitudes = kIsBackward ? 4 : 2;
  const PlanOptions options = options_of(args.problem, kIsBackward, context);
  const PlanOrReason& made = find_plan(args, options, context.device_index);
  if (made.plan != nullptr) {
    set_to_zero(op, args.amax, kMagnitudes * static_cast<int64_t>(sizeof(float)), context);
  }
  const StartsTable starts;
  run_plan({.op = op,
            .problem = args.problem,
            .inputs = args.inputs,
            .starts = starts,
            .options = options},
           made, pointers, context);
}

void run_forward(const AttentionFp8ForwardArgs& args, const Context& context) {
  const AttentionProblem& problem = args.problem;
  Pointers pointers{};
  set_results(pointers, args);
  set_number(pointers, Role::kDescaleQ, args.descale_q);
  set_number(pointers, Role::kDescaleK, args.descale_k);
  set_number(pointers, Role::kDescaleV, args.descale_v);
  set_number(pointers, Role::kScaleS, args.scale_s);
  set_number(pointers, Role::kDescaleS, args.descale_s);
  set_number(pointers, Role::kScaleO, is_fp8(args.types.o) ? args.scale_o : nullptr);
  at(pointers, Role::kAmaxS) = args.amax;
  at(pointers, Role::kAmaxO) = args.amax + 1;
  find_and_run("attention_fp8_forward", args, pointers, context);
  if (problem.has_lengths) {
    clear_outside_sequences(problem, args.inputs.sequences,
                            target_of(args.o, args.types.o, true, problem.heads, problem.size_v),
                            context);
  }
}

void set_backward_numbers(Pointers& pointers, const AttentionFp8BackwardArgs& args) {
  set_number(pointers, Role::kDescaleQ, args.descale_q);
  set_number(pointers, Role::kDescaleK, args.descale_k);
  set_number(pointers, Role::kDescaleV, args.descale_v);
  set_number(pointers, Role::kDescaleO, is_fp8(args.types.saved_o) ? args.descale_o : nullptr);
  set_number(pointers, Role::kDescaleGradO, args.descale_grad_o);
  set_number(pointers, Role::kScaleS, args.scale_s);
  set_number(pointers, Role::kDescaleS, args.descale_s);
  set_number(pointers, Role::kScaleDP, args.scale_dp);
  set_number(pointers, Role::kDescaleDP, args.descale_dp);
  if (is_fp8(args.types.grads)) {
    set_number(pointers, Role::kScaleGradQ, args.scale_grad_q);
    set_number(pointers, Role::kScaleGradK, args.scale_grad_k);
    set_number(pointers, Role::kScaleGradV, args.scale_grad_v);
  }
  at(pointers, Role::kAmaxGradQ) = args.amax;
  at(pointers, Role::kAmaxGradK) = args.amax + 1;
  at(pointers, Role::kAmaxGradV) = args.amax + 2;
  at(pointers, Role::kAmaxDP) = args.amax + 3;
}

void run_backward(const AttentionFp8BackwardArgs& args, const Context& context) {
  const AttentionProblem& problem = args.problem;
  Pointers pointers{};
  set_gradients(pointers, args);
  set_backward_numbers(pointers, args);
  find_and_run("attention_fp8_backward", args, pointers, context);
  if (!problem.has_lengths) {
    return;
  }
  const DType dtype = args.types.grads;
  for (const ClearTarget& target :
       {target_of(args.grad_q, dtype, true, problem.heads, problem.size_qk),
        target_of(args.grad_k, dtype, false, problem.groups, problem.size_qk),
        target_of(args.grad_v, dtype, false, problem.groups, problem.size_v)}) {
    clear_outside_sequences(problem, args.inputs.sequences, target, context);
  }
}

}  // namespace

const char* fused_attention_fp8_refusal(const AttentionProblem& problem,
                                        const AttentionFp8Types& types, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const char* const library = cudnn_refusal();
  if (library != nullptr) {
    return library;
  }
  return reason_against_fp8(
      problem, types,
      {.compute_capability = compute_capability(context.device_index), .version = cudnn_version()});
}

template <>
const char* EntryPoint<AttentionFp8ForwardArgs>::refusal(const AttentionFp8ForwardArgs& args,
                                                         const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DType dtype = args.problem.dtype;
  const char* const reason = refusal_of_tensors({{args.inputs.q, dtype},
                                                 {args.inputs.k, dtype},
                                                 {args.inputs.v, dtype},
                                                 {args.o, args.types.o}},
                                                context);
  return reason != nullptr ? reason
                           : fused_attention_fp8_refusal(args.problem, args.types, context);
}
template <>
void EntryPoint<AttentionFp8ForwardArgs>::run(const AttentionFp8ForwardArgs& args,
                                              const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  run_forward(args, context);
}

template <>
const char* EntryPoint<AttentionFp8BackwardArgs>::refusal(const AttentionFp8BackwardArgs& args,
                                                          const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DType dtype = args.problem.dtype;
  const AttentionFp8Types& types = args.types;
  const char* const reason = refusal_of_tensors({{args.inputs.q, dtype},
                                                 {args.inputs.k, dtype},
                                                 {args.inputs.v, dtype},
                                                 {args.o, types.saved_o},
                                                 {args.grad_o, types.grad_o},
                                                 {args.grad_q, types.grads},
                                                 {args.grad_k, types.grads},
                                                 {args.grad_v, types.grads}},
                                                context);
  return reason != nullptr ? reason
                           : fused_attention_fp8_refusal(args.problem, args.types, context);
}
const char* fused_attention_fp8_backward_refusal(const AttentionFp8BackwardArgs& args,
                                                 const Context& context) {
  const char* const refusal = EntryPoint<AttentionFp8BackwardArgs>::refusal(args, context);
  if (refusal != nullptr) {
    return refusal;
  }
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  const PlanOptions options = options_of(args.problem, true, context);
  const PlanOrReason& made = find_plan(args, options, context.device_index);
  return made.plan == nullptr ? made.reason.c_str() : nullptr;
}

template <>
void EntryPoint<AttentionFp8BackwardArgs>::run(const AttentionFp8BackwardArgs& args,
                                               const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  run_backward(args, context);
}

}  // namespace transformer_engine::cuda
