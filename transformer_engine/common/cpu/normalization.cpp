// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splits rows over threads. gamma and beta are widened to FP32 once per call, so that the kernels
// need no variant per weight type.
#include "cpu/normalization.h"

#include "cpu/norm_kernels.h"
#include "cpu/result_rows.h"
#include "cpu/row_work.h"

namespace transformer_engine::cpu {

namespace {

float gain_addend(bool zero_centered_gamma) { return zero_centered_gamma ? 1.0F : 0.0F; }

template <typename T>
T* offset_or_null(T* pointer, int64_t offset) {
  return pointer == nullptr ? nullptr : pointer + offset;
}

}  // namespace

void norm_forward(const NormForwardArgs& args, const Context& context) {
  const int64_t rows = args.input.rows;
  const int64_t hidden = args.input.cols;
  const FloatVector gain(args.gamma, gain_addend(args.zero_centered_gamma));
  const FloatVector beta(args.beta, 0.0F);
  const auto kernel =
      TE_CPU_KERNELS(norm_kernels)
          .forward[static_cast<int>(args.kind)][io_index(args.input.dtype, args.output.dtype)];
  ResultRows result(args.output, args.quantized, context.num_threads);
  parallel_for(rows, row_grain(hidden, result.row_alignment()), context.num_threads,
               [&](int64_t begin, int64_t end, int thread) {
                 result.produce(begin, end, thread, [&](int64_t row, int64_t count, void* where) {
                   kernel({.input = row_address(args.input, row),
                           .output = where,
                           .input_dtype = args.input.dtype,
                           .output_dtype = args.output.dtype,
                           .gain = gain.data(),
                           .beta = beta.data(),
                           .mean = offset_or_null(args.mean, row),
                           .rstd = offset_or_null(args.rstd, row),
                           .rows = count,
                           .hidden = hidden,
                           .epsilon = args.epsilon});
                 });
               });
  result.finish();
}

void norm_backward(const NormBackwardArgs& args, const Context& context) {
  const int64_t hidden = args.input.cols;
  const bool is_layer_norm = args.kind == NormKind::kLayerNorm;
  const bool with_weights = args.grad_gamma.data != nullptr || args.grad_beta.data != nullptr;
  const FloatVector gain(args.gamma, gain_addend(args.zero_centered_gamma));
  // An operand that is not there has no say in the choice of the kernel.
  const DType input_dtype = args.input.dtype;
  const DType grad_input_dtype =
      args.grad_input.data != nullptr ? args.grad_input.dtype : input_dtype;
  const DType residual_dtype =
      args.grad_residual.data != nullptr ? args.grad_residual.dtype : input_dtype;
  const auto kernel =
      TE_CPU_KERNELS(norm_kernels)
          .backward[static_cast<int>(args.kind)][io_index(input_dtype, args.grad_output.dtype,
                                                          grad_input_dtype, residual_dtype)];
  // Sums of a chunk: grad_gamma, then for LayerNorm grad_beta.
  RowSumParts parts(args.input.rows, is_layer_norm ? 2 * hidden : hidden, with_weights);
  parts.for_chunks(context.num_threads, 1, [&](int64_t begin, int64_t end, int, float* sums) {
    kernel({.grad_output = row_address(args.grad_output, begin),
            .input = row_address(args.input, begin),
            .grad_residual = row_address(args.grad_residual, begin),
            .grad_input = row_address(args.grad_input, begin),
            .grad_output_dtype = args.grad_output.dtype,
            .input_dtype = input_dtype,
            .grad_residual_dtype = residual_dtype,
            .grad_input_dtype = grad_input_dtype,
            .gain = gain.data(),
            .mean = offset_or_null(args.mean, begin),
            .rstd = args.rstd + begin,
            .gamma_sum = sums,
            .beta_sum = is_layer_norm ? offset_or_null(sums, hidden) : nullptr,
            .rows = end - begin,
            .hidden = hidden});
  });
  parts.total(0, args.grad_gamma, context.num_threads);
  parts.total(hidden, args.grad_beta, context.num_threads);
}

}  // namespace transformer_engine::cpu
