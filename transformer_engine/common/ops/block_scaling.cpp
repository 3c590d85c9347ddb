// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/block_scaling.h>

#include "core/checks.h"
#include "cpu/block_scaling.h"
#include "numerics/bits.h"
#include "ops/candidates.h"
#include "reference/block_scaling.h"

namespace transformer_engine {

namespace {

void check_quantize(const char* op, DType scale_dtype, const TensorView& input,
                    const BlockQuantizedOutput& output) {
  check_operand(op, "input", input);
  TE_CHECK(output.is_wanted() || input.numel() == 0, op,
           ": neither rowwise nor columnwise is given; at least one is required.");
  check_block_quantized_output(op, scale_dtype, output, input.rows, input.cols);
}

void check_dequantize_e2m1(const char* op, const BlockScaledMatrix& input) {
  TE_CHECK_TYPE(input.scales.dtype == DType::kFloat8E4M3, op, ": input scales have dtype ",
                dtype_name(input.scales.dtype), "; float8_e4m3 is required for float4_e2m1.");
  TE_CHECK(input.scales.amax != nullptr || input.data.numel() == 0, op,
           ": input scales have no amax; a pointer to FP32 is required for float4_e2m1.");
  TE_CHECK(input.scales.e4m3_max > 0.0F && numerics::is_finite(input.scales.e4m3_max), op,
           ": input scales have e4m3_max ", input.scales.e4m3_max,
           "; a finite number above 0 is required.");
}

void check_dequantize_fp8(const char* op, const BlockScaledMatrix& input) {
  TE_CHECK_TYPE(is_fp8(input.data.dtype), op, ": input has dtype ", dtype_name(input.data.dtype),
                "; float8_e4m3, float8_e5m2 or float4_e2m1 is required.");
  TE_CHECK_TYPE(input.scales.dtype == DType::kFloat32 || input.scales.dtype == DType::kFloat8E8M0,
                op, ": input scales have dtype ", dtype_name(input.scales.dtype),
                "; float32 or float8_e8m0 is required for ", dtype_name(input.data.dtype), ".");
}

}  // namespace

void quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context) {
  constexpr char kOp[] = "quantize_fp8_blocks";
  check_quantize(kOp, DType::kFloat32, args.input,
                 {.rowwise = args.rowwise, .columnwise = args.columnwise, .epsilon = args.epsilon});
  run_first_candidate(
      kOp,
      kCandidates<QuantizeFp8BlocksArgs, cpu::quantize_fp8_blocks, reference::quantize_fp8_blocks>,
      args, context);
}

void quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context) {
  constexpr char kOp[] = "quantize_mxfp8";
  check_quantize(kOp, DType::kFloat8E8M0, args.input,
                 {.rowwise = args.rowwise, .columnwise = args.columnwise});
  run_first_candidate(
      kOp, kCandidates<QuantizeMxfp8Args, cpu::quantize_mxfp8, reference::quantize_mxfp8>, args,
      context);
}

void dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context) {
  constexpr char kOp[] = "dequantize_blocks";
  const BlockScaledMatrix& input = args.input;
  check_extent(kOp, "input", input.data);
  if (input.data.dtype == DType::kFloat4E2M1) {
    check_dequantize_e2m1(kOp, input);
  } else {
    check_dequantize_fp8(kOp, input);
  }
  check_data(kOp, "input", input.data);
  TE_CHECK(input.scales.block_rows > 0 && input.scales.block_cols > 0, kOp,
           ": input has blocks of ", input.scales.block_rows, " x ", input.scales.block_cols,
           "; sizes above 0 are required.");
  check_scale_strides(kOp, "input", input);
  check_operand(kOp, "output", args.output, input.data.rows, input.data.cols);
  run_first_candidate(
      kOp, kCandidates<DequantizeBlocksArgs, cpu::dequantize_blocks, reference::dequantize_blocks>,
      args, context);
}

}  // namespace transformer_engine
