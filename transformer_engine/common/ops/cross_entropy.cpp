// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/cross_entropy.h>

#include "core/checks.h"
#include "cpu/cross_entropy.h"
#include "ops/candidates.h"
#include "reference/cross_entropy.h"

namespace transformer_engine {

namespace {

void check_float(const char* op, const char* name, const TensorView& view, int64_t rows,
                 int64_t cols) {
  check_operand(op, name, view, rows, cols);
  TE_CHECK_TYPE(view.dtype == DType::kFloat32, op, ": ", name, " has dtype ",
                dtype_name(view.dtype), "; float32 is required.");
}

void check_targets(const char* op, const CrossEntropyTargets& targets, int64_t rows,
                   int64_t columns) {
  TE_CHECK(targets.ids != nullptr || rows == 0, op, ": targets are null for ", rows,
           " rows; one id per row is required.");
  TE_CHECK(targets.first >= 0 && columns <= targets.vocabulary &&
               targets.first <= targets.vocabulary - columns,
           op, ": the columns are ids ", targets.first, " to ", targets.first + columns,
           " of a vocabulary of ", targets.vocabulary, "; they must lie inside it.");
}

void check_smoothing(const char* op, float smoothing) {
  TE_CHECK(smoothing >= 0.0F && smoothing <= 1.0F, op, ": label_smoothing is ", smoothing,
           "; a number from 0 to 1 is required.");
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatisticsArgs& args, const Context& context) {
  constexpr char kOp[] = "cross_entropy_statistics";
  check_operand(kOp, "input", args.input);
  check_float(kOp, "statistics", args.statistics, args.input.rows, kCrossEntropyStatistics);
  check_targets(kOp, args.targets, args.input.rows, args.input.cols);
  run_first_candidate(kOp,
                      kCandidates<CrossEntropyStatisticsArgs, &cpu::cross_entropy_statistics,
                                  &reference::cross_entropy_statistics>,
                      args, context);
}

void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context& context) {
  constexpr char kOp[] = "cross_entropy_loss";
  const int64_t rows = args.softmax.rows;
  check_float(kOp, "softmax", args.softmax, rows, 2);
  check_extent(kOp, "softmax", args.softmax);
  check_float(kOp, "weight", args.weight, 1, 1);
  check_float(kOp, "loss", args.loss, 1, args.is_mean ? 1 : rows);
  check_extent(kOp, "statistics", args.statistics);
  TE_CHECK(rows == 0 ? args.statistics.rows == 0
                     : args.statistics.rows > 0 && args.statistics.rows % rows == 0,
           kOp, ": statistics has ", args.statistics.rows, " rows for ", rows,
           " rows of logits; as many from each rank are required.");
  check_float(kOp, "statistics", args.statistics, args.statistics.rows, kCrossEntropyStatistics);
  check_targets(kOp, args.targets, rows, 0);
  check_smoothing(kOp, args.label_smoothing);
  run_first_candidate(
      kOp,
      kCandidates<CrossEntropyLossArgs, &cpu::cross_entropy_loss, &reference::cross_entropy_loss>,
      args, context);
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const Context& context) {
  constexpr char kOp[] = "cross_entropy_backward";
  const int64_t rows = args.input.rows;
  check_operand(kOp, "input", args.input);
  check_operand(kOp, "grad_input", args.grad_input, rows, args.input.cols);
  TE_CHECK_TYPE(args.grad_input.dtype == args.input.dtype, kOp, ": grad_input has dtype ",
                dtype_name(args.grad_input.dtype), "; ", dtype_name(args.input.dtype),
                ", that of the input, is required.");
  check_float(kOp, "softmax", args.softmax, rows, 2);
  check_float(kOp, "weight", args.weight, 1, 1);
  check_float(kOp, "grad_output", args.grad_output, 1, args.grad_output.cols == 1 ? 1 : rows);
  check_targets(kOp, args.targets, rows, args.input.cols);
  check_smoothing(kOp, args.label_smoothing);
  run_first_candidate(kOp,
                      kCandidates<CrossEntropyBackwardArgs, &cpu::cross_entropy_backward,
                                  &reference::cross_entropy_backward>,
                      args, context);
}

}  // namespace transformer_engine
