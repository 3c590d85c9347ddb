// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/attention.h>

#include "core/candidate.h"
#include "core/checks.h"
#include "cuda/attention_support.h"
#include "cuda/entry_points.h"
#include "numerics/bits.h"
#include "reference/attention.h"

namespace transformer_engine {

namespace {

constexpr Candidate<AttentionForwardArgs> kForward[] = {
    cuda::kCandidate<AttentionForwardArgs>,
    {"reference", &refuse_unless_cpu<AttentionForwardArgs>, &reference::attention_forward},
};

constexpr Candidate<AttentionBackwardArgs> kBackward[] = {
    cuda::kCandidate<AttentionBackwardArgs>,
    {"reference", &refuse_unless_cpu<AttentionBackwardArgs>, &reference::attention_backward},
};

constexpr Candidate<AttentionFp8ForwardArgs> kFp8Forward[] = {
    cuda::kCandidate<AttentionFp8ForwardArgs>,
};

constexpr Candidate<AttentionFp8BackwardArgs> kFp8Backward[] = {
    cuda::kCandidate<AttentionFp8BackwardArgs>,
};

void check_sizes(const char* op, const AttentionProblem& problem) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"batch", problem.batch},       {"heads", problem.heads},
               {"queries", problem.queries},   {"keys", problem.keys},
               {"size_qk", problem.size_qk},   {"size_v", problem.size_v},
               {"tokens_q", problem.tokens_q}, {"tokens_kv", problem.tokens_kv}};
  for (const auto& size : sizes) {
    TE_CHECK(size.value >= 0, op, ": ", size.name, " is ", size.value, "; 0 or more is required.");
  }
  TE_CHECK(problem.groups > 0 && problem.heads % problem.groups == 0, op, ": heads is ",
           problem.heads, " and groups ", problem.groups, "; heads must be a multiple of groups.");
}

// All but the dtype.
void check_numbers(const char* op, const AttentionProblem& problem) {
  check_sizes(op, problem);
  TE_CHECK(numerics::is_finite(problem.scale), op, ": scale is ", problem.scale,
           "; a finite number is required.");
  TE_CHECK(problem.dropout >= 0.0F && problem.dropout < 1.0F, op, ": dropout is ", problem.dropout,
           "; a probability in [0, 1) is required.");
  TE_CHECK(problem.has_lengths || !problem.is_packed, op,
           ": is_packed is true and has_lengths false; packed sequences need lengths.");
  TE_CHECK(!problem.has_bias || !problem.is_packed, op,
           ": has_bias is true for packed sequences; a bias needs one row of tokens per sequence.");
  if (problem.has_bias) {
    TE_CHECK(problem.bias_batch == 1 || problem.bias_batch == problem.batch, op, ": bias_batch is ",
             problem.bias_batch, "; 1 or ", problem.batch, " is required.");
    TE_CHECK(problem.bias_heads == 1 || problem.bias_heads == problem.heads, op, ": bias_heads is ",
             problem.bias_heads, "; 1 or ", problem.heads, " is required.");
  }
}

void check_problem(const char* op, const AttentionProblem& problem) {
  TE_CHECK_TYPE(is_high_precision(problem.dtype), op, ": dtype is ", dtype_name(problem.dtype),
                "; float32, float16 or bfloat16 is required.");
  check_numbers(op, problem);
}

void check_fp8_problem(const char* op, const AttentionProblem& problem,
                       const AttentionFp8Types& types) {
  const struct {
    const char* name;
    DType dtype;
    bool may_have_16_bits;
  } all[] = {{"dtype", problem.dtype, false},
             {"types.o", types.o, true},
             {"types.saved_o", types.saved_o, true},
             {"types.grad_o", types.grad_o, false},
             {"types.grads", types.grads, true}};
  for (const auto& type : all) {
    const bool has_16_bits = is_high_precision(type.dtype) && type.dtype != DType::kFloat32;
    TE_CHECK_TYPE(
        is_fp8(type.dtype) || (type.may_have_16_bits && has_16_bits), op, ": ", type.name, " is ",
        dtype_name(type.dtype), "; ", dtype_name(DType::kFloat8E4M3), " or ",
        dtype_name(DType::kFloat8E5M2),
        type.may_have_16_bits ? ", or float16 or bfloat16, is required." : " is required.");
  }
  check_numbers(op, problem);
}

// Whether a tensor of so many rows of `size` elements has any.
bool is_empty(const AttentionProblem& problem, bool is_query, int64_t size) {
  const int64_t tokens = is_query ? (problem.is_packed ? problem.tokens_q : problem.queries)
                                  : (problem.is_packed ? problem.tokens_kv : problem.keys);
  return problem.batch == 0 || problem.heads == 0 || tokens == 0 || size == 0;
}

void check_tensor(const char* op, const char* name, const HeadsView& view, bool may_be_null) {
  TE_CHECK(view.data != nullptr || may_be_null, op, ": ", name,
           " has no data; a pointer to its elements is required.");
  TE_CHECK(view.batch_stride >= 0 && view.head_stride >= 0 && view.token_stride >= 0, op, ": ",
           name, " has strides ", view.batch_stride, ", ", view.head_stride, ", ",
           view.token_stride, "; strides of 0 or more are required.");
}

void check_inputs(const char* op, const AttentionProblem& problem, const AttentionInputs& inputs) {
  check_tensor(op, "q", inputs.q, is_empty(problem, true, problem.size_qk));
  check_tensor(op, "k", inputs.k, is_empty(problem, false, problem.size_qk));
  check_tensor(op, "v", inputs.v, is_empty(problem, false, problem.size_v));
  if (problem.has_bias) {
    check_tensor(op, "bias", inputs.bias, is_empty(problem, true, problem.keys));
  }
  TE_CHECK(!problem.has_lengths ||
               (inputs.sequences.cu_q != nullptr && inputs.sequences.cu_kv != nullptr),
           op, ": cu_q or cu_kv is null; sequences with lengths need both.");
  TE_CHECK(problem.dropout == 0.0F || (inputs.seed != nullptr && inputs.offset != nullptr), op,
           ": seed or offset is null; dropout needs both.");
}

// What a forward writes.
template <typename Args>
void check_results(const char* op, const Args& args) {
  const AttentionProblem& problem = args.problem;
  check_tensor(op, "o", args.o, is_empty(problem, true, problem.size_v));
  TE_CHECK(!problem.has_statistics || args.statistics != nullptr || is_empty(problem, true, 1), op,
           ": statistics is null; has_statistics asks for them.");
}

// What a backward reads and writes besides the inputs.
template <typename Args>
void check_gradients(const char* op, const Args& args) {
  const AttentionProblem& problem = args.problem;
  const bool has_no_q = is_empty(problem, true, problem.size_qk);
  const bool has_no_o = is_empty(problem, true, problem.size_v);
  check_tensor(op, "o", args.o, has_no_o);
  check_tensor(op, "grad_o", args.grad_o, has_no_o);
  check_tensor(op, "grad_q", args.grad_q, has_no_q);
  check_tensor(op, "grad_k", args.grad_k, is_empty(problem, false, problem.size_qk));
  check_tensor(op, "grad_v", args.grad_v, is_empty(problem, false, problem.size_v));
  TE_CHECK(problem.has_statistics && (args.statistics != nullptr || has_no_o), op,
           ": statistics is null or has_statistics false; the forward's statistics are required.");
}

struct NamedScale {
  const char* name;
  const float* value;
  bool is_needed = true;
};

template <size_t N>
void check_scales(const char* op, const NamedScale (&scales)[N], const float* amax) {
  for (const NamedScale& scale : scales) {
    TE_CHECK(scale.value != nullptr || !scale.is_needed, op, ": ", scale.name,
             " is null; a pointer to a number is required.");
  }
  TE_CHECK(amax != nullptr, op, ": amax is null; memory for the largest magnitudes is required.");
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, const Context& context) {
  constexpr char kOp[] = "attention_forward";
  const AttentionProblem& problem = args.problem;
  check_problem(kOp, problem);
  check_inputs(kOp, problem, args.inputs);
  check_results(kOp, args);
  run_first_candidate(kOp, kForward, args, context);
}

void attention_backward(const AttentionBackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "attention_backward";
  const AttentionProblem& problem = args.problem;
  check_problem(kOp, problem);
  check_inputs(kOp, problem, args.inputs);
  check_gradients(kOp, args);
  check_tensor(kOp, "grad_bias", args.grad_bias, true);
  TE_CHECK(problem.has_bias || args.grad_bias.data == nullptr, kOp,
           ": grad_bias is given and has_bias false; a gradient needs a bias.");
  run_first_candidate(kOp, kBackward, args, context);
}

void attention_fp8_forward(const AttentionFp8ForwardArgs& args, const Context& context) {
  constexpr char kOp[] = "attention_fp8_forward";
  const AttentionProblem& problem = args.problem;
  check_fp8_problem(kOp, problem, args.types);
  check_inputs(kOp, problem, args.inputs);
  check_results(kOp, args);
  check_scales(kOp,
               {{"descale_q", args.descale_q},
                {"descale_k", args.descale_k},
                {"descale_v", args.descale_v},
                {"scale_s", args.scale_s},
                {"descale_s", args.descale_s},
                {"scale_o", args.scale_o, is_fp8(args.types.o)}},
               args.amax);
  run_first_candidate(kOp, kFp8Forward, args, context);
}

void attention_fp8_backward(const AttentionFp8BackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "attention_fp8_backward";
  const AttentionProblem& problem = args.problem;
  check_fp8_problem(kOp, problem, args.types);
  check_inputs(kOp, problem, args.inputs);
  check_gradients(kOp, args);
  check_scales(kOp,
               {{"descale_q", args.descale_q},
                {"descale_k", args.descale_k},
                {"descale_v", args.descale_v},
                {"descale_o", args.descale_o, is_fp8(args.types.saved_o)},
                {"descale_grad_o", args.descale_grad_o},
                {"scale_s", args.scale_s},
                {"descale_s", args.descale_s},
                {"scale_dp", args.scale_dp},
                {"descale_dp", args.descale_dp},
                {"scale_grad_q", args.scale_grad_q, is_fp8(args.types.grads)},
                {"scale_grad_k", args.scale_grad_k, is_fp8(args.types.grads)},
                {"scale_grad_v", args.scale_grad_v, is_fp8(args.types.grads)}},
               args.amax);
  run_first_candidate(kOp, kFp8Backward, args, context);
}

const char* attention_refusal(const AttentionProblem& problem, const Context& context) {
  check_problem("attention_refusal", problem);
  return context.device == DeviceType::kCPU ? "the tensors are not in device memory"
                                            : cuda::fused_attention_refusal(problem, context);
}

const char* attention_backward_refusal(const AttentionBackwardArgs& args, const Context& context) {
  check_problem("attention_backward_refusal", args.problem);
  return context.device == DeviceType::kCPU ? nullptr
                                            : cuda::fused_attention_backward_refusal(args, context);
}

const char* attention_fp8_refusal(const AttentionProblem& problem, const AttentionFp8Types& types,
                                  const Context& context) {
  check_fp8_problem("attention_fp8_refusal", problem, types);
  return context.device == DeviceType::kCPU
             ? "the tensors are not in device memory"
             : cuda::fused_attention_fp8_refusal(problem, types, context);
}

const char* attention_fp8_backward_refusal(const AttentionFp8BackwardArgs& args,
                                           const Context& context) {
  check_fp8_problem("attention_fp8_backward_refusal", args.problem, args.types);
  return context.device == DeviceType::kCPU
             ? "the tensors are not in device memory"
             : cuda::fused_attention_fp8_backward_refusal(args, context);
}

}  // namespace transformer_engine
