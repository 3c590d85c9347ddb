// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/activation.h"

#include <transformer_engine/activation.h>

#include "core/candidate.h"
#include "core/checks.h"
#include "cuda/entry_points.h"
#include "numerics/bits.h"
#include "reference/activation.h"

namespace transformer_engine {

namespace {

constexpr Candidate<ActivationForwardArgs> kForward[] = {
    {"cpu", &refuse_unless_cpu<ActivationForwardArgs>, &cpu::activation_forward},
    cuda::kCandidate<ActivationForwardArgs>,
    {"reference", &refuse_unless_cpu<ActivationForwardArgs>, &reference::activation_forward},
};

constexpr Candidate<ActivationBackwardArgs> kBackward[] = {
    {"cpu", &refuse_unless_cpu<ActivationBackwardArgs>, &cpu::activation_backward},
    cuda::kCandidate<ActivationBackwardArgs>,
    {"reference", &refuse_unless_cpu<ActivationBackwardArgs>, &reference::activation_backward},
};

constexpr Candidate<BiasGradientArgs> kBiasGradient[] = {
    {"cpu", &refuse_unless_cpu<BiasGradientArgs>, &cpu::bias_gradient},
    cuda::kCandidate<BiasGradientArgs>,
    {"reference", &refuse_unless_cpu<BiasGradientArgs>, &reference::bias_gradient},
};

void check_kind(const char* op, ActivationKind kind) {
  const int value = static_cast<int>(kind);
  TE_CHECK(value >= 0 && value <= static_cast<int>(ActivationKind::kSiTUGLU), op, ": kind is ",
           value, "; a value of ActivationKind, 0 to 12, is required.");
}

void check_beta(const char* op, const char* name, float beta) {
  TE_CHECK(numerics::is_finite(beta) && beta > 0.0F, op, ": ", name, " is ", beta,
           "; a finite number above 0 is required.");
}

void check_params(const char* op, ActivationKind kind, const ActivationParams& params) {
  if (kind == ActivationKind::kSiTUGLU) {
    check_beta(op, "beta1", params.beta1);
    check_beta(op, "beta2", params.beta2);
  }
  if (kind != ActivationKind::kClampedSwiGLU) {
    return;
  }
  TE_CHECK(params.limit >= 0.0F, op, ": limit is ", params.limit,
           "; a number of 0 or more is required.");
  TE_CHECK(numerics::is_finite(params.alpha), op, ": alpha is ", params.alpha,
           "; a finite number is required.");
  TE_CHECK(numerics::is_finite(params.glu_linear_offset), op, ": glu_linear_offset is ",
           params.glu_linear_offset, "; a finite number is required.");
}

// Checks what forward and backward share. Returns the columns of the activation's result.
template <typename Args>
int64_t check_activation(const char* op, const Args& args) {
  check_kind(op, args.kind);
  check_params(op, args.kind, args.params);
  const TensorView& input = args.input;
  const int64_t interleave = args.glu_interleave_size;
  check_operand(op, "input", input);
  check_optional_operand(op, "bias", args.bias, 1, input.cols);
  check_optional_operand(op, "act_scales", args.act_scales, 1, input.rows);
  if (!is_gated(args.kind)) {
    TE_CHECK(interleave == 0, op, ": glu_interleave_size is ", interleave,
             "; 0 is required, because the activation is not gated.");
    return input.cols;
  }
  TE_CHECK(input.cols % 2 == 0, op, ": input has shape [", input.rows, ", ", input.cols,
           "]; a gated activation needs an even number of columns.");
  const int64_t cols = input.cols / 2;
  TE_CHECK(interleave == 0 || (interleave > 0 && cols % interleave == 0), op,
           ": glu_interleave_size is ", interleave, "; 0 or a divisor of the ", cols,
           " columns of a half is required.");
  return cols;
}

}  // namespace

bool is_gated(ActivationKind kind) { return kind >= ActivationKind::kGLU; }

void activation_forward(const ActivationForwardArgs& args, const Context& context) {
  constexpr char kOp[] = "activation_forward";
  const int64_t cols = check_activation(kOp, args);
  check_result(kOp, "output", args.output, args.quantized, args.input.rows, cols);
  run_first_candidate(kOp, kForward, args, context);
}

void activation_backward(const ActivationBackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "activation_backward";
  const int64_t cols = check_activation(kOp, args);
  check_operand(kOp, "grad_output", args.grad_output, args.input.rows, cols);
  check_result(kOp, "grad_input", args.grad_input, args.quantized, args.input.rows,
               args.input.cols);
  check_optional_operand(kOp, "grad_bias", args.grad_bias, 1, args.input.cols);
  check_optional_operand(kOp, "grad_act_scales", args.grad_act_scales, 1, args.input.rows);
  run_first_candidate(kOp, kBackward, args, context);
}

void bias_gradient(const BiasGradientArgs& args, const Context& context) {
  constexpr char kOp[] = "bias_gradient";
  check_operand(kOp, "grad_output", args.grad_output);
  check_operand(kOp, "grad_bias", args.grad_bias, 1, args.grad_output.cols);
  check_quantized_output(kOp, args.quantized, args.grad_output.rows, args.grad_output.cols);
  run_first_candidate(kOp, kBiasGradient, args, context);
}

}  // namespace transformer_engine
