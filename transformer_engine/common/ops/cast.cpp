// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/cast.h>

#include "core/checks.h"
#include "cpu/cast.h"
#include "numerics/bits.h"
#include "ops/candidates.h"
#include "reference/cast.h"

namespace transformer_engine {

namespace {

// One number: the reference is as fast as it gets.
constexpr Candidate<ScaleFromAmaxArgs> kScaleFromAmax[] = {
    cuda::kCandidate<ScaleFromAmaxArgs>,
    {"reference", &refuse_unless_cpu<ScaleFromAmaxArgs>, &reference::compute_scale_from_amax},
};

void check_fp8_max(const char* op, float fp8_max) {
  TE_CHECK(fp8_max > 0.0F && numerics::is_finite(fp8_max), op, ": fp8_max is ", fp8_max,
           "; a finite number above 0 is required. Pass the largest value of the FP8 type.");
}

void check_one_byte(const char* op, const char* name, const TensorView& view) {
  TE_CHECK_TYPE(element_size_bytes(view.dtype) == 1, op, ": ", name, " has dtype ",
                dtype_name(view.dtype), "; a one-byte type is required.");
}

void check_pointer(const char* op, const char* name, const void* pointer) {
  TE_CHECK(pointer != nullptr, op, ": ", name, " is null; a pointer to FP32 is required.");
}

}  // namespace

void quantize(const QuantizeArgs& args, const Context& context) {
  constexpr char kOp[] = "quantize";
  check_extent(kOp, "input", args.input);
  check_high_precision(kOp, "input", args.input);
  check_data(kOp, "input", args.input);
  TE_CHECK(!args.output.blocks.is_wanted(), kOp,
           ": output has copies with one scale per block; one scale is required. Call "
           "quantize_fp8_blocks or quantize_mxfp8.");
  TE_CHECK(args.output.is_wanted() || args.input.numel() == 0, kOp,
           ": output has none of data, data_transpose and amax; at least one is required.");
  check_quantized_output(kOp, args.output, args.input.rows, args.input.cols);
  if (args.output.data.is_wanted()) {
    check_data(kOp, "quantized data", args.output.data);
  }
  if (args.output.data_transpose.is_wanted()) {
    check_data(kOp, "quantized data_transpose", args.output.data_transpose);
  }
  run_first_candidate(kOp, kCandidates<QuantizeArgs, cpu::quantize, reference::quantize>, args,
                      context);
}

void dequantize(const DequantizeArgs& args, const Context& context) {
  constexpr char kOp[] = "dequantize";
  check_extent(kOp, "input", args.input);
  check_fp8(kOp, "input", args.input);
  check_data(kOp, "input", args.input);
  check_high_precision(kOp, "output", args.output);
  check_shape(kOp, "output", args.output, args.input.rows, args.input.cols);
  check_data(kOp, "output", args.output);
  run_first_candidate(kOp, kCandidates<DequantizeArgs, cpu::dequantize, reference::dequantize>,
                      args, context);
}

void transpose_bytes(const TransposeArgs& args, const Context& context) {
  constexpr char kOp[] = "transpose_bytes";
  check_extent(kOp, "input", args.input);
  check_one_byte(kOp, "input", args.input);
  check_data(kOp, "input", args.input);
  check_one_byte(kOp, "output", args.output);
  check_shape(kOp, "output", args.output, args.input.cols, args.input.rows);
  check_data(kOp, "output", args.output);
  run_first_candidate(kOp,
                      kCandidates<TransposeArgs, cpu::transpose_bytes, reference::transpose_bytes>,
                      args, context);
}

void compute_amax(const AmaxArgs& args, const Context& context) {
  constexpr char kOp[] = "compute_amax";
  check_extent(kOp, "input", args.input);
  check_high_precision(kOp, "input", args.input);
  check_data(kOp, "input", args.input);
  check_pointer(kOp, "amax", args.amax);
  run_first_candidate(kOp, kCandidates<AmaxArgs, cpu::compute_amax, reference::compute_amax>, args,
                      context);
}

void compute_scale_from_amax(const ScaleFromAmaxArgs& args, const Context& context) {
  constexpr char kOp[] = "compute_scale_from_amax";
  check_pointer(kOp, "amax", args.amax);
  check_pointer(kOp, "scale", args.scale);
  check_fp8_max(kOp, args.fp8_max);
  TE_CHECK(args.epsilon >= 0.0F && numerics::is_finite(args.epsilon), kOp, ": epsilon is ",
           args.epsilon, "; a finite number of 0 or more is required.");
  run_first_candidate(kOp, kScaleFromAmax, args, context);
}

void delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context) {
  constexpr char kOp[] = "delayed_scaling_update";
  const TensorView& history = args.amax_history;
  check_extent(kOp, "amax_history", history);
  TE_CHECK_TYPE(history.dtype == DType::kFloat32, kOp, ": amax_history has dtype ",
                dtype_name(history.dtype), "; float32 is required.");
  TE_CHECK(history.rows > 0 || history.cols == 0, kOp, ": amax_history has shape [", history.rows,
           ", ", history.cols, "]; at least one row is required.");
  check_data(kOp, "amax_history", history);
  TE_CHECK(args.scale != nullptr || history.cols == 0, kOp, ": scale is null; a pointer to ",
           history.cols, " FP32 is required.");
  check_fp8_max(kOp, args.fp8_max);
  TE_CHECK(numerics::is_finite(args.margin), kOp, ": margin is ", args.margin,
           "; a finite number is required.");
  TE_CHECK(args.algo == AmaxComputeAlgo::kMax || args.algo == AmaxComputeAlgo::kMostRecent, kOp,
           ": algo is ", static_cast<int>(args.algo), "; 0 (max) or 1 (most recent) is required.");
  run_first_candidate(kOp,
                      kCandidates<DelayedScalingUpdateArgs, cpu::delayed_scaling_update,
                                  reference::delayed_scaling_update>,
                      args, context);
}

}  // namespace transformer_engine
