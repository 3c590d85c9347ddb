// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scaled dot-product attention, forward and backward. Per sequence and head, with queries i, keys
// j and K, V those of the head's group (head / (heads / groups)):
//   S_ij = scale * Q_i . K_j + bias_ij          on the pairs that are visible
//   L_i  = log(sum_j e^S_ij)                     the statistics, FP32; -inf where nothing is
//   visible P_ij = e^(S_ij - L_i) D_ij = 0 with probability `dropout`, else 1 / (1 - dropout) O_i
//   = sum_j P_ij D_ij V_j                   0 where nothing is visible
// and, from the gradient dO:
//   dP_ij = D_ij dO_i . V_j          dS_ij = P_ij (dP_ij - dO_i . O_i)      dbias = sum of dS
//   dQ_i  = scale sum_j dS_ij K_j    dK_j  = scale sum_i dS_ij Q_i          dV_j = sum_i P_ij D_ij
//   dO_i
// with O and L as the forward rounded them; dK and dV sum over the heads of a group, dbias over
// what the bias was broadcast along.
//
// Visible: i + shift - left <= j <= i + shift + right, where a negative left or right is no limit
// and shift is keys - queries (of the sequence) when is_bottom_right, else 0; and i and j are below
// the lengths of the sequence.
//
// Tokens that belong to no sequence are not read, and what the results hold there is 0.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

// All that does not depend on where the tensors lie.
struct AttentionProblem {
  int64_t batch = 0;              // sequences
  int64_t heads = 0, groups = 0;  // of the queries; of keys and values
  int64_t queries = 0, keys = 0;  // tokens of the longest sequence
  int64_t size_qk = 0, size_v = 0;
  DType dtype = DType::kBFloat16;  // of Q, K, V, O, the bias and all gradients
  float scale = 1.0F;
  float dropout = 0.0F;
  int64_t left = -1, right = -1;
  bool is_bottom_right = false;
  bool has_lengths = false;             // sequences may be shorter: see AttentionSequences
  bool is_packed = false;               // the batch is one row of tokens; implies has_lengths
  int64_t tokens_q = 0, tokens_kv = 0;  // is_packed: of that row
  bool has_bias = false;
  int64_t bias_batch = 1, bias_heads = 1;  // 1: the same for all
  bool has_statistics = false;             // a backward follows
  bool is_deterministic = false;           // the same bits in every run
};

// [batch, heads, tokens, size] by strides, in elements; that of the last dimension is 1. Packed: no
// batch stride, sequences begin at the rows that AttentionSequences names.
struct HeadsView {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, token_stride = 0;
};

// int32 [batch + 1] each, on the device of the tensors, with 0 in front: sequence i has
// cu[i + 1] - cu[i] tokens. Packed, it begins at row first[i] and its slot ends at first[i + 1];
// null means that no slot is longer than its sequence.
struct AttentionSequences {
  const int32_t* cu_q = nullptr;
  const int32_t* cu_kv = nullptr;
  const int32_t* first_q = nullptr;
  const int32_t* first_kv = nullptr;
};

// Of the forward and the backward.
struct AttentionInputs {
  HeadsView q, k, v;
  HeadsView bias;  // [bias_batch, bias_heads, queries, keys]; token_stride is that of a query
  AttentionSequences sequences;
  // Dropout: two numbers on the device of the tensors. Which elements are dropped is a function of
  // them; the backward repeats it where the same implementation runs.
  const int64_t* seed = nullptr;
  const int64_t* offset = nullptr;
};

struct AttentionForwardArgs {
  AttentionProblem problem;
  AttentionInputs inputs;
  HeadsView o;
  float* statistics = nullptr;  // has_statistics: [batch, heads, queries]; packed [tokens_q, heads]
};
void attention_forward(const AttentionForwardArgs& args, const Context& context);

struct AttentionBackwardArgs {
  AttentionProblem problem;  // as given to the forward
  AttentionInputs inputs;    // likewise
  HeadsView o, grad_o;
  const float* statistics = nullptr;
  HeadsView grad_q, grad_k, grad_v;
  HeadsView grad_bias;  // optional (null), the shape of the bias
};
void attention_backward(const AttentionBackwardArgs& args, const Context& context);

// Why no fast implementation takes the problem on this device, or null; valid until the thread's
// next call. attention_forward may refuse all the same, with NotImplementedError and before
// anything is written: some limits show when a plan is made.
const char* attention_refusal(const AttentionProblem& problem, const Context& context);
// Likewise for what a backward will be called with, which is prepared for it; memory that is not
// there yet may be null. For a forward, so that it does not begin what its backward cannot end.
const char* attention_backward_refusal(const AttentionBackwardArgs& args, const Context& context);

// ---- FP8
//
// The same by products of FP8 codes, with one scale per tensor. Of a tensor x, x8 are the codes and
// d_x = 1 / scale_x is what they are multiplied with. Forward, where P is of the type of Q:
//   S = scale d_q d_k Q8 K8^T              on the pairs that are visible
//   L = log-sum-exp of S                   the statistics, FP32
//   P = e^(S - L)                          P8 = cast(P scale_s)
//   O = d_s d_v P8 V8                      stored as cast(O scale_o), or as it is where O has 16
//   bits
// Backward, where dS is of the type of dO:
//   delta_i = d_do d_o sum(dO8_i O8_i)     d_o = 1 where O has 16 bits
//   dS = scale P (d_do d_v dO8 V8^T - delta)          dS8 = cast(dS scale_dp)
//   dV = d_s d_do P8^T dO8      dQ = d_dp d_k dS8 K8      dK = d_dp d_q dS8^T Q8
//                                          stored as cast(x scale_x), or as they are in 16 bits
// with dK and dV summed over the heads of a group. `cast` rounds to the nearest, ties to even, and
// saturates, as quantization does. Beside the results, the largest magnitudes of P, O, dQ, dK, dV
// and dS as they are before a scale, over the tokens of the sequences; 0 where there are none.
// Scales may lie at any multiple of 4 bytes; that d_x is 1 / scale_x is not checked.

// kFloat8E4M3 or kFloat8E5M2; where it says so, kFloat16 and kBFloat16, too.
struct AttentionFp8Types {
  DType o = DType::kFloat8E4M3;        // of the forward's result, 16 bits included
  DType saved_o = DType::kFloat8E4M3;  // of O as the backward gets it, 16 bits included
  DType grad_o = DType::kFloat8E5M2;
  DType grads = DType::kFloat8E5M2;  // of dQ, dK and dV, 16 bits included
};

struct AttentionFp8ForwardArgs {
  AttentionProblem problem;  // dtype: of Q, K and V
  AttentionFp8Types types;
  AttentionInputs inputs;
  HeadsView o;
  float* statistics = nullptr;  // has_statistics: [batch, heads, queries]
  // FP32 [1] on the device of the tensors, as all scales.
  const float* descale_q = nullptr;
  const float* descale_k = nullptr;
  const float* descale_v = nullptr;
  const float* scale_s = nullptr;
  const float* descale_s = nullptr;
  const float* scale_o = nullptr;  // null where O has 16 bits
  float* amax = nullptr;           // FP32 [2]: of P, of O
};
void attention_fp8_forward(const AttentionFp8ForwardArgs& args, const Context& context);

struct AttentionFp8BackwardArgs {
  AttentionProblem problem;  // as given to the forward
  AttentionFp8Types types;   // likewise
  AttentionInputs inputs;    // likewise
  HeadsView o, grad_o;
  const float* statistics = nullptr;
  HeadsView grad_q, grad_k, grad_v;
  const float* descale_q = nullptr;
  const float* descale_k = nullptr;
  const float* descale_v = nullptr;
  const float* descale_o = nullptr;  // null where O has 16 bits
  const float* descale_grad_o = nullptr;
  const float* scale_s = nullptr;
  const float* descale_s = nullptr;
  const float* scale_dp = nullptr;
  const float* descale_dp = nullptr;
  const float* scale_grad_q = nullptr;  // null where the gradients have 16 bits, as the next two
  const float* scale_grad_k = nullptr;
  const float* scale_grad_v = nullptr;
  float* amax = nullptr;  // FP32 [4]: of dQ, dK, dV and dS
};
void attention_fp8_backward(const AttentionFp8BackwardArgs& args, const Context& context);

// As attention_refusal() and attention_backward_refusal(). has_statistics: of the backward, too.
const char* attention_fp8_refusal(const AttentionProblem& problem, const AttentionFp8Types& types,
                                  const Context& context);
const char* attention_fp8_backward_refusal(const AttentionFp8BackwardArgs& args,
                                           const Context& context);

}  // namespace transformer_engine
