// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/softmax.h"

#include "cpu/row_work.h"
#include "cpu/softmax_kernels.h"
#include "numerics/softmax_rows.h"

namespace transformer_engine::cpu {

void softmax_forward(const SoftmaxForwardArgs& args, const Context& context) {
  const int64_t keys = args.input.cols;
  const auto kernel =
      TE_CPU_KERNELS(softmax_kernels).forward[io_index(args.input.dtype, args.output.dtype)];
  const numerics::SoftmaxRows rows = numerics::softmax_rows(args);
  Scratch<float> scratch(keys *
                         std::max(context.num_threads, 1));  // one row of exponentials per thread
  parallel_for(args.input.rows, row_grain(keys), context.num_threads,
               [&](int64_t begin, int64_t end, int thread) {
                 for (int64_t row = begin; row < end; ++row) {
                   kernel({.input = row_address(args.input, row),
                           .output = row_address(args.output, row),
                           .input_dtype = args.input.dtype,
                           .output_dtype = args.output.dtype,
                           .mask = numerics::mask_of_row(rows, row),
                           .visible = numerics::visible_columns(rows, row),
                           .keys = keys,
                           .scale = args.scale,
                           .scratch = scratch.data() + thread * keys});
                 }
               });
}

void softmax_backward(const SoftmaxBackwardArgs& args, const Context& context) {
  const int64_t keys = args.output.cols;
  const auto kernel =
      TE_CPU_KERNELS(softmax_kernels)
          .backward[io_index(args.output.dtype, args.grad_output.dtype, args.grad_input.dtype)];
  parallel_for(args.output.rows, row_grain(keys), context.num_threads,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t row = begin; row < end; ++row) {
                   kernel({.grad_output = row_address(args.grad_output, row),
                           .output = row_address(args.output, row),
                           .grad_input = row_address(args.grad_input, row),
                           .grad_output_dtype = args.grad_output.dtype,
                           .output_dtype = args.output.dtype,
                           .grad_input_dtype = args.grad_input.dtype,
                           .keys = keys,
                           .scale = args.scale});
                 }
               });
}

}  // namespace transformer_engine::cpu
