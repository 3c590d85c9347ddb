// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/softmax.h"

#include <transformer_engine/softmax.h>

#include "core/candidate.h"
#include "core/checks.h"
#include "cuda/entry_points.h"
#include "numerics/bits.h"
#include "reference/softmax.h"

namespace transformer_engine {

namespace {

constexpr Candidate<SoftmaxForwardArgs> kForward[] = {
    {"cpu", &refuse_unless_cpu<SoftmaxForwardArgs>, &cpu::softmax_forward},
    cuda::kCandidate<SoftmaxForwardArgs>,
    {"reference", &refuse_unless_cpu<SoftmaxForwardArgs>, &reference::softmax_forward},
};

constexpr Candidate<SoftmaxBackwardArgs> kBackward[] = {
    {"cpu", &refuse_unless_cpu<SoftmaxBackwardArgs>, &cpu::softmax_backward},
    cuda::kCandidate<SoftmaxBackwardArgs>,
    {"reference", &refuse_unless_cpu<SoftmaxBackwardArgs>, &reference::softmax_backward},
};

void check_scale(const char* op, float scale) {
  TE_CHECK(numerics::is_finite(scale), op, ": scale is ", scale, "; a finite number is required.");
}

void check_extents(const char* op, const SoftmaxForwardArgs& args) {
  TE_CHECK(args.batch >= 0 && args.heads >= 0 && args.queries >= 0 &&
               args.batch * args.heads * args.queries == args.input.rows,
           op, ": input has ", args.input.rows, " rows for batch ", args.batch, ", heads ",
           args.heads, ", queries ", args.queries, "; their product is required.");
}

void check_mask(const char* op, const SoftmaxForwardArgs& args) {
  const int kind = static_cast<int>(args.mask_kind);
  TE_CHECK(kind >= 0 && kind <= static_cast<int>(SoftmaxMask::kCausalAligned), op,
           ": mask_kind is ", kind, "; a value of SoftmaxMask, 0 to 3, is required.");
  if (args.mask_kind != SoftmaxMask::kPadding) {
    return;
  }
  TE_CHECK(args.mask_batch == 1 || args.mask_batch == args.batch, op, ": mask has batch size ",
           args.mask_batch, "; 1 or ", args.batch, " is required.");
  TE_CHECK(args.mask != nullptr || args.input.numel() == 0, op,
           ": mask is null; a padding softmax needs one byte per query and key.");
}

}  // namespace

void softmax_forward(const SoftmaxForwardArgs& args, const Context& context) {
  constexpr char kOp[] = "softmax_forward";
  check_operand(kOp, "input", args.input);
  check_operand(kOp, "output", args.output, args.input.rows, args.input.cols);
  check_scale(kOp, args.scale);
  check_extents(kOp, args);
  check_mask(kOp, args);
  run_first_candidate(kOp, kForward, args, context);
}

void softmax_backward(const SoftmaxBackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "softmax_backward";
  check_operand(kOp, "output", args.output);
  check_operand(kOp, "grad_output", args.grad_output, args.output.rows, args.output.cols);
  check_operand(kOp, "grad_input", args.grad_input, args.output.rows, args.output.cols);
  check_scale(kOp, args.scale);
  run_first_candidate(kOp, kBackward, args, context);
}

}  // namespace transformer_engine
