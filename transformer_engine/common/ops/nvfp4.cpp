// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/block_scaling.h>

#include "core/checks.h"
#include "core/nvfp4_amax.h"
#include "cpu/nvfp4.h"
#include "numerics/nvfp4.h"
#include "ops/candidates.h"
#include "reference/nvfp4.h"

namespace transformer_engine {

namespace {

void check_four_over_six(const char* op, const QuantizeNvfp4Args& args) {
  const auto mode = static_cast<int>(args.four_over_six);
  TE_CHECK(mode >= 0 && mode <= 2, op, ": four_over_six is ", mode,
           "; 0 (none), 1 (mean absolute error) or 2 (mean squared error) is required.");
  if (args.four_over_six == FourOverSix::kNone) {
    return;
  }
  TE_CHECK(!args.has_hadamard, op, ": has_hadamard is set with four_over_six ", mode,
           "; the two exclude each other. Quantize without one of them.");
  TE_CHECK(!args.is_stochastic, op, ": is_stochastic is set with four_over_six ", mode,
           "; the two exclude each other. Quantize without one of them.");
}

void check_row_scaled(const char* op, const QuantizeNvfp4Args& args) {
  TE_CHECK(!args.columnwise.scales.is_row_scaled, op,
           ": columnwise scales are row-scaled; only the rowwise copy can be.");
  if (!args.rowwise.scales.is_row_scaled) {
    return;
  }
  const char* excluded = args.has_hadamard       ? "has_hadamard"
                         : args.is_stochastic    ? "is_stochastic"
                         : args.has_square_tiles ? "has_square_tiles"
                                                 : nullptr;
  TE_CHECK(excluded == nullptr, op, ": ", excluded,
           " is set and the rowwise scales are row-scaled; the two exclude each other. Quantize "
           "without one of them.");
}

// The input, the options, and the amax that both ops need of each copy.
void check_problem(const char* op, const QuantizeNvfp4Args& args) {
  check_operand(op, "input", args.input);
  check_four_over_six(op, args);
  check_row_scaled(op, args);
}

void check_amax(const char* op, const char* name, const BlockScaledMatrix& copy, int64_t rows) {
  const bool is_needed = !copy.scales.is_row_scaled || rows > 0;
  TE_CHECK(!copy.is_wanted() || copy.scales.amax != nullptr || !is_needed, op, ": ", name,
           " scales have no amax; a pointer to ", copy.scales.is_row_scaled ? rows : 1,
           " FP32 is required.");
}

void check_copy(const char* op, const char* name, const BlockScaledMatrix& copy, int64_t rows,
                int64_t cols) {
  if (!copy.is_wanted()) {
    return;
  }
  TE_CHECK_TYPE(copy.data.dtype == DType::kFloat4E2M1, op, ": ", name, " has dtype ",
                dtype_name(copy.data.dtype), "; float4_e2m1 is required.");
  check_shape(op, name, copy.data, rows, cols);
  check_data(op, name, copy.data);
  check_block_scales(op, name, copy, {DType::kFloat8E4M3, 1, numerics::kNvfp4Block});
  check_amax(op, name, copy, rows);
  const float e4m3_max = copy.scales.e4m3_max;
  TE_CHECK(e4m3_max == 448.0F || e4m3_max == 256.0F, op, ": ", name, " scales have e4m3_max ",
           e4m3_max, "; 448 or 256 is required.");
}

}  // namespace

void compute_nvfp4_amax(const QuantizeNvfp4Args& args, const Context& context) {
  constexpr char kOp[] = "compute_nvfp4_amax";
  check_problem(kOp, args);
  check_amax(kOp, "rowwise", args.rowwise, args.input.rows);
  check_amax(kOp, "columnwise", args.columnwise, args.input.cols);
  TE_CHECK(args.rowwise.scales.amax != nullptr || args.columnwise.scales.amax != nullptr ||
               args.input.numel() == 0,
           kOp, ": neither rowwise nor columnwise scales have an amax; at least one is required.");
  run_first_candidate(
      kOp, kCandidates<Nvfp4AmaxProblem, cpu::compute_nvfp4_amax, reference::compute_nvfp4_amax>,
      {args}, context);
}

void quantize_nvfp4(const QuantizeNvfp4Args& args, const Context& context) {
  constexpr char kOp[] = "quantize_nvfp4";
  check_problem(kOp, args);
  TE_CHECK(args.rowwise.is_wanted() || args.columnwise.is_wanted() || args.input.numel() == 0, kOp,
           ": neither rowwise nor columnwise is given; at least one is required.");
  check_copy(kOp, "rowwise", args.rowwise, args.input.rows, args.input.cols);
  check_copy(kOp, "columnwise", args.columnwise, args.input.cols, args.input.rows);
  QuantizeNvfp4Args resolved = args;
  if (args.device_seed != nullptr && context.device == DeviceType::kCPU) {
    resolved.seed = *args.device_seed;
  }
  run_first_candidate(
      kOp, kCandidates<QuantizeNvfp4Args, cpu::quantize_nvfp4, reference::quantize_nvfp4>, resolved,
      context);
}

}  // namespace transformer_engine
