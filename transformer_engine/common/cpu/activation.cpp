// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splits rows over threads. Bias and scales are widened to FP32 once per call.
#include "cpu/activation.h"

#include "cpu/activation_kernels.h"
#include "cpu/result_rows.h"
#include "cpu/row_work.h"

namespace transformer_engine::cpu {

namespace {

// FP32 results of kernels, one per row: in the output itself, or in a buffer that finish() rounds
// to the output's type. Nothing for an unwanted output.
class RowResults {
 public:
  explicit RowResults(const TensorView& output)
      : output_(output),
        is_rounded_(output.data != nullptr && output.dtype != DType::kFloat32),
        buffer_(is_rounded_ ? output.numel() : 0) {}

  float* address(int64_t row) {
    float* data = is_rounded_ ? buffer_.data() : static_cast<float*>(output_.data);
    return data == nullptr ? nullptr : data + row;
  }
  void finish() {
    if (is_rounded_) {
      TE_CPU_KERNELS(row_kernels)
          .total({.parts = buffer_.data(),
                  .part_count = 1,
                  .stride = output_.numel(),
                  .output = output_.data,
                  .dtype = output_.dtype,
                  .count = output_.numel()});
    }
  }

 private:
  const TensorView output_;
  const bool is_rounded_;
  Scratch<float> buffer_;
};

const float* address(const FloatVector& scales, int64_t row) {
  return scales.data() == nullptr ? nullptr : scales.data() + row;
}

auto backward_kernel(const ActivationBackwardArgs& args) {
  const int kind = static_cast<int>(args.kind);
  const int io = io_index(args.input.dtype, args.grad_output.dtype, args.grad_input.dtype);
  return is_gated(args.kind) ? TE_CPU_KERNELS(gated_activation_backward_kernels)
                                   .run[kind - kPlainActivationCount][io]
                             : TE_CPU_KERNELS(plain_activation_backward_kernels).run[kind][io];
}

}  // namespace

void activation_forward(const ActivationForwardArgs& args, const Context& context) {
  const FloatVector bias(args.bias, 0.0F);
  const FloatVector scales(args.act_scales, 0.0F);
  const auto kernel =
      TE_CPU_KERNELS(activation_forward_kernels)
          .run[static_cast<int>(args.kind)][io_index(args.input.dtype, args.output.dtype)];
  ResultRows result(args.output, args.quantized, context.num_threads);
  parallel_for(args.output.rows, row_grain(args.input.cols, result.row_alignment()),
               context.num_threads, [&](int64_t begin, int64_t end, int thread) {
                 result.produce(begin, end, thread, [&](int64_t row, int64_t rows, void* where) {
                   kernel({.input = row_address(args.input, row),
                           .bias = bias.data(),
                           .act_scales = address(scales, row),
                           .output = where,
                           .input_dtype = args.input.dtype,
                           .output_dtype = args.output.dtype,
                           .rows = rows,
                           .cols = args.output.cols,
                           .glu_interleave_size = args.glu_interleave_size,
                           .params = args.params});
                 });
               });
  result.finish();
}

void activation_backward(const ActivationBackwardArgs& args, const Context& context) {
  const FloatVector bias(args.bias, 0.0F);
  const FloatVector scales(args.act_scales, 0.0F);
  RowResults grad_scales(args.grad_act_scales);
  const auto kernel = backward_kernel(args);
  ResultRows result(args.grad_input, args.quantized, context.num_threads);
  RowSumParts parts(args.input.rows, args.input.cols, args.grad_bias.data != nullptr);
  parts.for_chunks(context.num_threads, result.row_alignment(),
                   [&](int64_t begin, int64_t end, int thread, float* bias_sum) {
                     result.produce(begin, end, thread,
                                    [&](int64_t row, int64_t rows, void* where) {
                                      kernel({.grad_output = row_address(args.grad_output, row),
                                              .input = row_address(args.input, row),
                                              .bias = bias.data(),
                                              .act_scales = address(scales, row),
                                              .grad_input = where,
                                              .bias_sum = bias_sum,
                                              .grad_act_scales = grad_scales.address(row),
                                              .grad_output_dtype = args.grad_output.dtype,
                                              .input_dtype = args.input.dtype,
                                              .grad_input_dtype = args.grad_input.dtype,
                                              .rows = rows,
                                              .cols = args.grad_output.cols,
                                              .glu_interleave_size = args.glu_interleave_size,
                                              .params = args.params});
                                    });
                   });
  parts.total(0, args.grad_bias, context.num_threads);
  grad_scales.finish();
  result.finish();
}

void bias_gradient(const BiasGradientArgs& args, const Context& context) {
  const TensorView& grad_output = args.grad_output;
  const auto kernel = TE_CPU_KERNELS(row_kernels).add_rows;
  // The "result" to quantize is the input itself.
  ResultRows result(grad_output, args.quantized, context.num_threads);
  RowSumParts parts(grad_output.rows, grad_output.cols, args.grad_bias.data != nullptr);
  parts.for_chunks(context.num_threads, result.row_alignment(),
                   [&](int64_t begin, int64_t end, int thread, float* bias_sum) {
                     result.produce(
                         begin, end, thread, [&](int64_t, int64_t rows, const void* values) {
                           kernel(values, grad_output.dtype, rows, grad_output.cols, bias_sum);
                         });
                   });
  parts.total(0, args.grad_bias, context.num_threads);
  result.finish();
}

}  // namespace transformer_engine::cpu
