// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/cross_entropy.h"

#include <cmath>
#include <cstring>

#include "cpu/cross_entropy_kernels.h"
#include "cpu/row_work.h"
#include "numerics/cross_entropy_rows.h"
#include "numerics/element.h"

namespace transformer_engine::cpu {

namespace {

// The target's element apart: the kernel knows nothing of targets.
void write_gradient(const CrossEntropyBackwardArgs& args, int64_t row) {
  const TensorView& input = args.input;
  void* const output = row_address(args.grad_input, row);
  const auto of_row = numerics::cross_entropy_gradient<float>(args, row);
  if (of_row.is_ignored) {
    std::memset(output, 0, static_cast<size_t>(input.cols * element_size_bytes(input.dtype)));
    return;
  }
  const bool is_here = of_row.target >= 0;
  const float x = is_here ? load_float(input, row * input.cols + of_row.target) : 0.0F;
  TE_CPU_KERNELS(cross_entropy_kernels)
      .gradient[high_precision_index(input.dtype)]({.input = row_address(input, row),
                                                    .grad_input = output,
                                                    .columns = input.cols,
                                                    .gradient = of_row.gradient,
                                                    .largest = of_row.largest,
                                                    .reciprocal = of_row.reciprocal,
                                                    .smoothed = of_row.smoothed});
  if (is_here) {
    const float share = std::exp(x - of_row.largest) * of_row.reciprocal - of_row.smoothed;
    store_float(args.grad_input, row * args.grad_input.cols + of_row.target,
                of_row.gradient * (share - of_row.at_target));
  }
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatisticsArgs& args, const Context& context) {
  const TensorView& input = args.input;
  const auto kernel =
      TE_CPU_KERNELS(cross_entropy_kernels).statistics[high_precision_index(input.dtype)];
  Scratch<float> scratch(kCrossEntropyChunk * std::max(context.num_threads, 1));
  parallel_for(
      input.rows, row_grain(input.cols), context.num_threads,
      [&](int64_t begin, int64_t end, int thread) {
        for (int64_t row = begin; row < end; ++row) {
          CrossEntropyStatisticsRow of_row{.input = row_address(input, row),
                                           .columns = input.cols,
                                           .scratch = scratch.data() + kCrossEntropyChunk * thread,
                                           .largest = 0.0F,
                                           .sum = 0.0F,
                                           .total = 0.0F};
          kernel(of_row);
          const int64_t target = numerics::target_column(args.targets, row, input.cols);
          auto* const out = static_cast<float*>(row_address(args.statistics, row));
          out[0] = of_row.largest;
          out[1] = of_row.sum;
          out[2] = target < 0 ? std::nanf("") : load_float(input, row * input.cols + target);
          out[3] = of_row.total;
        }
      });
}

// In FP64, one thread: a few numbers a row.
void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context&) {
  const int64_t rows = args.softmax.rows;
  auto* const softmax = static_cast<float*>(args.softmax.data);
  auto* const losses = static_cast<float*>(args.loss.data);
  double total = 0.0;
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto combined =
        numerics::combine_ranks<double>(args, row, rows, [](double x) { return std::exp(x); });
    softmax[2 * row] = static_cast<float>(combined.largest);
    softmax[2 * row + 1] = static_cast<float>(1.0 / combined.sum);
    double loss = 0.0;
    if (numerics::is_counted(args.targets, row)) {
      loss = numerics::cross_entropy_of(combined, std::log(combined.sum),
                                        static_cast<double>(args.label_smoothing),
                                        args.targets.vocabulary);
      ++count;
    }
    total += loss;
    if (!args.is_mean) {
      losses[row] = static_cast<float>(loss);
    }
  }
  const auto counted = static_cast<double>(std::max<int64_t>(count, 1));
  *static_cast<float*>(args.weight.data) = args.is_mean ? static_cast<float>(1.0 / counted) : 1.0F;
  if (args.is_mean) {
    *losses = static_cast<float>(total / counted);
  }
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const Context& context) {
  parallel_for(args.input.rows, row_grain(args.input.cols), context.num_threads,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t row = begin; row < end; ++row) {
                   write_gradient(args, row);
                 }
               });
}

}  // namespace transformer_engine::cpu
