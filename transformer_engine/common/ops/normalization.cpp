// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/normalization.h"

#include <transformer_engine/normalization.h>

#include "core/candidate.h"
#include "core/checks.h"
#include "cuda/entry_points.h"
#include "numerics/bits.h"
#include "reference/normalization.h"

namespace transformer_engine {

namespace {

constexpr Candidate<NormForwardArgs> kForward[] = {
    {"cpu", &refuse_unless_cpu<NormForwardArgs>, &cpu::norm_forward},
    cuda::kCandidate<NormForwardArgs>,
    {"reference", &refuse_unless_cpu<NormForwardArgs>, &reference::norm_forward},
};

constexpr Candidate<NormBackwardArgs> kBackward[] = {
    {"cpu", &refuse_unless_cpu<NormBackwardArgs>, &cpu::norm_backward},
    cuda::kCandidate<NormBackwardArgs>,
    {"reference", &refuse_unless_cpu<NormBackwardArgs>, &reference::norm_backward},
};

void check_kind(const char* op, NormKind kind) {
  TE_CHECK(kind == NormKind::kLayerNorm || kind == NormKind::kRMSNorm, op, ": kind is ",
           static_cast<int>(kind), "; 0 (LayerNorm) or 1 (RMSNorm) is required.");
}

void check_statistic(const char* op, const char* name, const float* data, int64_t rows) {
  TE_CHECK(data != nullptr || rows == 0, op, ": ", name, " is null; a pointer to ", rows,
           " FP32 is required. Pass what the forward wrote.");
}

void check_absent(const char* op, const char* name, bool is_absent) {
  TE_CHECK(is_absent, op, ": ", name, " is given; RMSNorm has none. Leave it out.");
}

}  // namespace

void norm_forward(const NormForwardArgs& args, const Context& context) {
  constexpr char kOp[] = "norm_forward";
  const int64_t rows = args.input.rows;
  const int64_t hidden = args.input.cols;
  check_kind(kOp, args.kind);
  check_operand(kOp, "input", args.input);
  check_operand(kOp, "gamma", args.gamma, 1, hidden);
  if (args.kind == NormKind::kLayerNorm) {
    check_operand(kOp, "beta", args.beta, 1, hidden);
    TE_CHECK_TYPE(args.beta.dtype == args.gamma.dtype, kOp, ": beta has dtype ",
                  dtype_name(args.beta.dtype), " and gamma ", dtype_name(args.gamma.dtype),
                  "; they must be equal.");
  } else {
    check_absent(kOp, "beta", !args.beta.is_wanted());
    check_absent(kOp, "mean", args.mean == nullptr);
  }
  TE_CHECK(args.epsilon >= 0.0F && numerics::is_finite(args.epsilon), kOp, ": epsilon is ",
           args.epsilon, "; a finite number of 0 or more is required.");
  check_result(kOp, "output", args.output, args.quantized, rows, hidden);
  run_first_candidate(kOp, kForward, args, context);
}

void norm_backward(const NormBackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "norm_backward";
  const int64_t rows = args.input.rows;
  const int64_t hidden = args.input.cols;
  check_kind(kOp, args.kind);
  check_operand(kOp, "input", args.input);
  check_operand(kOp, "grad_output", args.grad_output, rows, hidden);
  check_operand(kOp, "gamma", args.gamma, 1, hidden);
  check_statistic(kOp, "rstd", args.rstd, rows);
  if (args.kind == NormKind::kLayerNorm) {
    check_statistic(kOp, "mean", args.mean, rows);
  } else {
    check_absent(kOp, "mean", args.mean == nullptr);
    check_absent(kOp, "grad_beta", !args.grad_beta.is_wanted());
  }
  check_optional_operand(kOp, "grad_residual", args.grad_residual, rows, hidden);
  check_optional_operand(kOp, "grad_input", args.grad_input, rows, hidden);
  check_optional_operand(kOp, "grad_gamma", args.grad_gamma, 1, hidden);
  check_optional_operand(kOp, "grad_beta", args.grad_beta, 1, hidden);
  run_first_candidate(kOp, kBackward, args, context);
}

}  // namespace transformer_engine
