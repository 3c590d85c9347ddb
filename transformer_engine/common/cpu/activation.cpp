// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splits rows over threads. The bias is widened to FP32 once per call.
#include "cpu/activation.h"

#include "cpu/activation_kernels.h"
#include "cpu/result_rows.h"
#include "cpu/row_work.h"

namespace transformer_engine::cpu {

void activation_forward(const ActivationForwardArgs& args, const Context& context) {
  const FloatVector bias(args.bias, 0.0F);
  const auto kernel =
      TE_CPU_KERNELS(activation_forward_kernels)
          .run[static_cast<int>(args.kind)][io_index(args.input.dtype, args.output.dtype)];
  ResultRows result(args.output, args.quantized, context.num_threads);
  parallel_for(args.output.rows, row_grain(args.input.cols), context.num_threads,
               [&](int64_t begin, int64_t end, int thread) {
                 result.produce(begin, end, thread, [&](int64_t row, int64_t rows, void* where) {
                   kernel({.input = row_address(args.input, row),
                           .bias = bias.data(),
                           .output = where,
                           .input_dtype = args.input.dtype,
                           .output_dtype = args.output.dtype,
                           .rows = rows,
                           .cols = args.output.cols,
                           .params = args.params});
                 });
               });
  result.finish();
}

void activation_backward(const ActivationBackwardArgs& args, const Context& context) {
  const FloatVector bias(args.bias, 0.0F);
  const auto kernel = TE_CPU_KERNELS(activation_backward_kernels)
                          .run[static_cast<int>(args.kind)][io_index(
                              args.input.dtype, args.grad_output.dtype, args.grad_input.dtype)];
  ResultRows result(args.grad_input, args.quantized, context.num_threads);
  RowSumParts parts(args.input.rows, args.input.cols, args.grad_bias.data != nullptr);
  parts.for_chunks(
      context.num_threads, [&](int64_t begin, int64_t end, int thread, float* bias_sum) {
        result.produce(begin, end, thread, [&](int64_t row, int64_t rows, void* where) {
          kernel({.grad_output = row_address(args.grad_output, row),
                  .input = row_address(args.input, row),
                  .bias = bias.data(),
                  .grad_input = where,
                  .bias_sum = bias_sum,
                  .grad_output_dtype = args.grad_output.dtype,
                  .input_dtype = args.input.dtype,
                  .grad_input_dtype = args.grad_input.dtype,
                  .rows = rows,
                  .cols = args.grad_output.cols,
                  .params = args.params});
        });
      });
  parts.total(0, args.grad_bias, context.num_threads);
  result.finish();
}

void bias_gradient(const BiasGradientArgs& args, const Context& context) {
  const TensorView& grad_output = args.grad_output;
  const auto kernel = TE_CPU_KERNELS(row_kernels).add_rows;
  // The "result" to quantize is the input itself.
  ResultRows result(grad_output, args.quantized, context.num_threads);
  RowSumParts parts(grad_output.rows, grad_output.cols, args.grad_bias.data != nullptr);
  parts.for_chunks(
      context.num_threads, [&](int64_t begin, int64_t end, int thread, float* bias_sum) {
        result.produce(begin, end, thread, [&](int64_t, int64_t rows, const void* values) {
          kernel(values, grad_output.dtype, rows, grad_output.cols, bias_sum);
        });
      });
  parts.total(0, args.grad_bias, context.num_threads);
  result.finish();
}

}  // namespace transformer_engine::cpu
