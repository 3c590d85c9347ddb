// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/cross_entropy.h.
//   statistics  a block per row, which it reads once: each thread keeps the largest logit it has
//               seen and the sum of exponentials relative to it, and rescales the sum where a
//               vector holds a larger one; the block combines its threads at the end
//   loss        a thread per row over a few numbers of each rank; a mean is one block's, which adds
//               in a fixed order
//   backward    a block per row: read once, written once, perhaps in place
// 2 bytes an element forward, 4 backward for BF16. An exponential per element either way.
#include <transformer_engine/cross_entropy.h>

#include <algorithm>

#include "cuda/candidate.h"
#include "cuda/device/row.h"
#include "cuda/device/typed.h"
#include "cuda/dispatch.h"
#include "numerics/cross_entropy_rows.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kStep = kThreads * kSourceVector;
constexpr int kLossThreads = 256;
constexpr float kNothing = -__builtin_inff();  // the largest of no logits

struct StatisticsProblem {
  TypedPointer input;  // [rows, columns]
  float* statistics;   // [rows, 4]
  CrossEntropyTargets targets;
  int64_t rows, columns;
};

// Of a thread's logits so far.
struct Running {
  float largest = kNothing;
  float sum = 0.0F;  // of e^(x - largest), or of e^x where there is no largest
  float total = 0.0F;

  __device__ __forceinline__ static float base(float largest) {
    return largest == kNothing ? 0.0F : largest;
  }
  __device__ __forceinline__ void add(const float (&x)[kSourceVector], int64_t count) {
    float largest_here = kNothing;
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      largest_here = fmaxf(largest_here, i < count ? x[i] : kNothing);
    }
    if (largest_here > largest) {
      sum = sum == 0.0F ? 0.0F : sum * expf(base(largest) - largest_here);
      largest = largest_here;
    }
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      sum += i < count ? expf(x[i] - base(largest)) : 0.0F;
      total += i < count ? x[i] : 0.0F;
    }
  }
};

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_statistics(const __grid_constant__ StatisticsProblem problem) {
  __shared__ float maxima[1][kThreads / kWarpSize];
  __shared__ float sums[2][kThreads / kWarpSize];
  const int64_t columns = problem.columns;
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    Running running;
    for (int64_t col = static_cast<int64_t>(threadIdx.x) * kSourceVector; col < columns;
         col += kStep) {
      float x[kSourceVector];
      load_typed<kAligned>(problem.input, row * columns, col, columns, x);
      running.add(x, columns - col);
    }
    float largest[1] = {running.largest};
    group_reduce<Max, kThreads, kThreads>(largest, maxima);
    const float base = Running::base(largest[0]);
    const float scale = expf(Running::base(running.largest) - base);
    float sum[2] = {running.sum == 0.0F ? 0.0F : running.sum * scale, running.total};
    group_reduce<Sum, kThreads, kThreads>(sum, sums);
    if (threadIdx.x == 0) {
      const int64_t target = numerics::target_column(problem.targets, row, columns);
      float* const out = problem.statistics + kCrossEntropyStatistics * row;
      out[0] = base;
      out[1] = sum[0];
      out[2] = target < 0 ? __int_as_float(0x7FFFFFFF)
                          : load_any({.data = problem.input.data, .dtype = problem.input.dtype},
                                     row * columns + target);
      out[3] = sum[1];
    }
    __syncthreads();  // the next row uses the scratch again
  }
}

// Writes what the backward reads; the row's loss.
__device__ __forceinline__ float loss_of_row(const CrossEntropyLossArgs& args, int64_t row) {
  const auto combined =
      numerics::combine_ranks<float>(args, row, args.softmax.rows, [](float x) { return expf(x); });
  float* const softmax = static_cast<float*>(args.softmax.data) + 2 * row;
  softmax[0] = combined.largest;
  softmax[1] = 1.0F / combined.sum;
  return numerics::is_counted(args.targets, row)
             ? numerics::cross_entropy_of(combined, logf(combined.sum), args.label_smoothing,
                                          args.targets.vocabulary)
             : 0.0F;
}

__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_losses(const __grid_constant__ CrossEntropyLossArgs args) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLossThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kLossThreads;
  if (first == 0) {
    *static_cast<float*>(args.weight.data) = 1.0F;
  }
  for (int64_t row = first; row < args.softmax.rows; row += step) {
    static_cast<float*>(args.loss.data)[row] = loss_of_row(args, row);
  }
}

// Counts are exact in FP32 per thread up to 2^24 rows each, and their sum is taken as such.
__global__ void __launch_bounds__(kThreads)
    cross_entropy_mean(const __grid_constant__ CrossEntropyLossArgs args) {
  __shared__ float scratch[2][kThreads / kWarpSize];
  float sums[2] = {0.0F, 0.0F};
  for (int64_t row = threadIdx.x; row < args.softmax.rows; row += kThreads) {
    sums[0] += loss_of_row(args, row);
    sums[1] += numerics::is_counted(args.targets, row) ? 1.0F : 0.0F;
  }
  group_reduce<Sum, kThreads, kThreads>(sums, scratch);
  if (threadIdx.x == 0) {
    const float count = fmaxf(sums[1], 1.0F);
    *static_cast<float*>(args.weight.data) = 1.0F / count;
    *static_cast<float*>(args.loss.data) = sums[0] / count;
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_gradient(const __grid_constant__ CrossEntropyBackwardArgs args) {
  const int64_t columns = args.input.cols;
  const TypedPointer input{args.input.data, args.input.dtype};
  const TypedPointer output{args.grad_input.data, args.grad_input.dtype};
  for (int64_t row = blockIdx.x; row < args.input.rows; row += gridDim.x) {
    const auto of_row = numerics::cross_entropy_gradient<float>(args, row);
    for (int64_t col = static_cast<int64_t>(threadIdx.x) * kSourceVector; col < columns;
         col += kStep) {
      float x[kSourceVector];
      load_typed<kAligned>(input, row * columns, col, columns, x);
#pragma unroll
      for (int i = 0; i < kSourceVector; ++i) {
        const float share = fmaf(expf(x[i] - of_row.largest), of_row.reciprocal, -of_row.smoothed) -
                            (col + i == of_row.target ? of_row.at_target : 0.0F);
        x[i] = of_row.is_ignored ? 0.0F : of_row.gradient * share;
      }
      store_typed<kAligned>(output, row * columns, col, columns, x);
    }
  }
}

constexpr int64_t kMostBlocks = 1 << 20;
Launch launch_of(const char* name, int64_t blocks, int threads, const Context& context) {
  return {.name = name,
          .grid = dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks))),
          .block = dim3(static_cast<unsigned>(threads)),
          .stream = stream_of(context)};
}

void run_statistics(const CrossEntropyStatisticsArgs& args, const Context& context) {
  if (args.input.rows == 0) {
    return;
  }
  const StatisticsProblem problem{.input = typed(args.input),
                                  .statistics = data_of<float>(args.statistics),
                                  .targets = args.targets,
                                  .rows = args.input.rows,
                                  .columns = args.input.cols};
  for_bool(has_vector_rows(args.input), [&](auto aligned) {
    launch(&cross_entropy_statistics<aligned()>,
           launch_of("cross_entropy_statistics", problem.rows, kThreads, context), problem);
  });
}

void run_loss(const CrossEntropyLossArgs& args, const Context& context) {
  if (args.is_mean) {
    launch(&cross_entropy_mean, launch_of("cross_entropy_mean", 1, kThreads, context), args);
    return;
  }
  launch(&cross_entropy_losses,
         launch_of("cross_entropy_losses", divide_up<int64_t>(args.softmax.rows, kLossThreads),
                   kLossThreads, context),
         args);
}

void run_backward(const CrossEntropyBackwardArgs& args, const Context& context) {
  if (args.input.numel() == 0) {
    return;
  }
  for_bool(has_vector_rows(args.input) && has_vector_rows(args.grad_input), [&](auto aligned) {
    launch(&cross_entropy_gradient<aligned()>,
           launch_of("cross_entropy_gradient", args.input.rows, kThreads, context), args);
  });
}

}  // namespace

TE_CUDA_ENTRY_POINT(CrossEntropyStatisticsArgs, run_statistics)
TE_CUDA_ENTRY_POINT(CrossEntropyLossArgs, run_loss)
TE_CUDA_ENTRY_POINT(CrossEntropyBackwardArgs, run_backward)

}  // namespace transformer_engine::cuda
