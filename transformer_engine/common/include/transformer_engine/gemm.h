// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// D[m, n] = epilogue(alpha * op(A)[m, k] * op(B)[n, k]^T) (+ D). Products are accumulated in FP32
// (or wider); alpha is the product of what scales a whole operand: scale_inv, or NVFP4's amax /
// (6 * e4m3_max); the result is rounded once, after the epilogue. An element of a block-scaled
// operand is q * scale in FP32 (row-scaled: q * scale * amax / (6 * e4m3_max)); with scales that
// are powers of two, or E4M3 under one amax, it is exact in BF16, too, and multiplied as such. On
// CPUs with AVX512-BF16 products of BF16 numbers and their sums below 2^-126 in magnitude, and
// subnormal BF16 operands, count as 0: of block-scaled FP8, elements below 2^-126 may count as 0
// (per-tensor FP8 and E2M1 are never that small). d and pre_epilogue share no memory with each
// other nor with a, b and bias.
//   fprop: y  = x  W^T    A = x  [m, k]               B = W  [n, k]
//   dgrad: dx = dy W      A = dy [m, k]               B = W  stored [k, n], b_is_transposed
//   wgrad: dW = dy^T x    A = dy stored [k, m], a_is_transposed;  B = x stored [k, n],
//   b_is_transposed
#pragma once

#include <transformer_engine/types.h>

#include <vector>

namespace transformer_engine {

struct GemmOperand {
  TensorView matrix;                 // stored [rows, cols]: FP32, BF16, FP16, E4M3, E5M2, E2M1
  bool is_transposed = false;        // false: stored [m or n, k]; true: stored [k, m or n]
  const float* scale_inv = nullptr;  // [1], FP8 only; null means 1
  BlockScales scales;                // one per block (block_scaling.h); instead of scale_inv.
                                     // FP8: FP32 or E8M0; E2M1 needs E4M3 and an amax
};

enum class GemmEpilogue : int32_t { kNone = 0, kGELU = 1 };

struct GemmArgs {
  GemmOperand a;
  GemmOperand b;    // of any type; two high-precision ones are of one type
  TensorView bias;  // [1, n] FP32, BF16 or FP16, added in FP32 before the epilogue; optional
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  TensorView pre_epilogue;  // [m, n], same dtype as d: receives alpha*AB + bias before the
                            // epilogue; optional
  TensorView d;             // [m, n] FP32, BF16 or FP16
  bool accumulate =
      false;  // d += result; only without epilogue and bias. With FP32 d the sum stays in FP32
  // Of two FP8 operands with one scale each: partial sums may stay in a tensor core's accumulator,
  // which is shorter than FP32 on compute capability 8.9 and 9.0. No meaning elsewhere.
  bool allows_fast_accumulation = false;
};
// k = 0 gives zeros (or leaves d when accumulating) plus bias; m = 0 or n = 0 is a no-op.
void gemm(const GemmArgs& args, const Context& context);

// The implementations in the order in which they are asked, each with the reason why it refuses
// this problem, or null when it takes it. gemm() runs the first that takes it. Checks the arguments
// as gemm() does.
struct GemmCandidateStatus {
  const char* name;
  const char* refusal;
};
std::vector<GemmCandidateStatus> gemm_candidates(const GemmArgs& args, const Context& context);

// Runs the named implementation instead of the first; NotImplementedError with its reason when it
// refuses. For tests and benchmarks.
void gemm_on_candidate(const char* name, const GemmArgs& args, const Context& context);

}  // namespace transformer_engine
