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
  TE_CHECK(value >= 0 && value <= static_cast<int>(ActivationKind::kClampedSwiGLU), op,
           ": kind is ", value, "; a value of ActivationKind, 0 to 11, is required.");
}

void check_params(const char* op, ActivationKind kind, const ActivationParams& params) {
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

// Columns of the result for an input of a plain or gated activation.
int64_t check_input(const char* op, ActivationKind kind, const TensorView& input) {
  check_operand(op, "input", input);
  if (!is_gated(kind)) {
    return input.cols;
  }
  TE_CHECK(input.cols % 2 == 0, op, ": input has shape [", input.rows, ", ", input.cols,
           "]; a gated activation needs an even number of columns.");
  return input.cols / 2;
}

}  // namespace

bool is_gated(ActivationKind kind) { return kind >= ActivationKind::kGLU; }

void activation_forward(const ActivationForwardArgs& args, const Context& context) {
  constexpr char kOp[] = "activation_forward";
  check_kind(kOp, args.kind);
  check_params(kOp, args.kind, args.params);
  const int64_t cols = check_input(kOp, args.kind, args.input);
  check_optional_operand(kOp, "bias", args.bias, 1, args.input.cols);
  check_result(kOp, "output", args.output, args.quantized, args.input.rows, cols);
  run_first_candidate(kOp, kForward, args, context);
}

void activation_backward(const ActivationBackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "activation_backward";
  check_kind(kOp, args.kind);
  check_params(kOp, args.kind, args.params);
  const int64_t cols = check_input(kOp, args.kind, args.input);
  check_operand(kOp, "grad_output", args.grad_output, args.input.rows, cols);
  check_optional_operand(kOp, "bias", args.bias, 1, args.input.cols);
  check_result(kOp, "grad_input", args.grad_input, args.quantized, args.input.rows,
               args.input.cols);
  check_optional_operand(kOp, "grad_bias", args.grad_bias, 1, args.input.cols);
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
