// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/softmax.h.
//   forward   y = e^(scale * x - largest) / sum   input, output [batch * heads * queries, keys]
//   backward  dx = scale * (dy - sum(dy * y)) * y
// Rows of up to 16384 keys that allow vectors stay in registers (device/row.h): a warp holds up to
// 1024, a block of 128, 256 or 512 threads up to 4096, 8192 or 16384. Scores are read once, except
// for what a causal mask hides, which is not read at all, and results written once: 4 bytes an
// element for BF16, 6 for the backward, and one for a padding mask, which heads share in the
// caches. Other rows take a block each and are read once per pass: three forward, two backward.
#include <transformer_engine/softmax.h>

#include <algorithm>

#include "cuda/candidate.h"
#include "cuda/device/row.h"
#include "cuda/device/typed.h"
#include "cuda/dispatch.h"
#include "numerics/softmax_rows.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kVectors = 4;  // of a row in a thread's registers: 32 elements
constexpr int kLoopThreads = 256;
constexpr int kLoopStep = kLoopThreads * kSourceVector;
constexpr float kNothing = -__builtin_inff();  // the maximum of no scores

struct ForwardProblem {
  TypedPointer input;   // [rows, keys]
  TypedPointer output;  // [rows, keys]
  numerics::SoftmaxRows visibility;
  int64_t rows;
  float scale;
};

// Of the mask of one row: how many columns come before the causal end, and its mask bytes.
struct Visibility {
  int64_t end;
  const uint8_t* mask;
};

__device__ __forceinline__ Visibility visibility_of(const ForwardProblem& problem, int64_t row) {
  return {numerics::visible_columns(problem.visibility, row),
          numerics::mask_of_row(problem.visibility, row)};
}

// Bit i: whether the row sees column col + i; `col` is before its end.
template <bool kAligned>
__device__ __forceinline__ unsigned visible_bits(const Visibility& row, int64_t col, int64_t keys) {
  unsigned bits = 0;
  Vec<uint8_t, kSourceVector> hidden{};
  if (row.mask != nullptr && kAligned) {
    hidden = Vec<uint8_t, kSourceVector>::load(row.mask + col);
  } else if (row.mask != nullptr) {
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      hidden.v[i] = col + i < keys ? row.mask[col + i] : uint8_t{1};
    }
  }
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    bits |= hidden.v[i] == 0 && col + i < row.end ? 1U << i : 0U;
  }
  return bits;
}

__device__ __forceinline__ float largest_of(const float (&values)[kSourceVector], unsigned bits,
                                            float scale, float largest) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    largest = fmaxf(largest, (bits >> i & 1U) != 0 ? scale * values[i] : kNothing);
  }
  return largest;
}

// `values` becomes e^(scale * x - largest), 0 where hidden. The exponent is rounded once, so that
// the rounding of `largest` cancels in the quotient.
__device__ __forceinline__ void to_exponentials(float (&values)[kSourceVector], unsigned bits,
                                                float scale, float largest) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    values[i] = (bits >> i & 1U) != 0 ? expf(fmaf(scale, values[i], -largest)) : 0.0F;
  }
}

__device__ __forceinline__ float sum_of(const float (&values)[kSourceVector], float sum) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    sum += values[i];
  }
  return sum;
}

// Hidden columns are 0 whatever the sum is.
__device__ __forceinline__ void to_shares(float (&values)[kSourceVector], unsigned bits,
                                          float reciprocal) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    values[i] = (bits >> i & 1U) != 0 ? values[i] * reciprocal : 0.0F;
  }
}

template <class T, int kThreads, int kGroup>
__global__ void __launch_bounds__(kThreads, 768 / kThreads)
    softmax_forward_rows(const __grid_constant__ ForwardProblem problem) {
  __shared__ float maxima[1][kThreads / kWarpSize];
  __shared__ float sums[1][kThreads / kWarpSize];
  using Row = RowPart<T, kGroup, kVectors>;
  const int64_t keys = problem.visibility.keys;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) +
                      static_cast<int>(threadIdx.x) / kGroup;
  const bool has_row = row < problem.rows;  // a group without one goes along, for the barriers
  const Visibility visibility = has_row ? visibility_of(problem, row) : Visibility{0, nullptr};
  Row x;
  x.load(static_cast<const T*>(problem.input.data) + row * keys, visibility.end);
  float values[kVectors][kSourceVector];
  unsigned bits[kVectors];
  float largest[1] = {kNothing};
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    x.get(vector, values[vector]);
    bits[vector] = Row::column(vector) < visibility.end
                       ? visible_bits<true>(visibility, Row::column(vector), keys)
                       : 0U;
    largest[0] = largest_of(values[vector], bits[vector], problem.scale, largest[0]);
  }
  group_reduce<Max, kThreads, kGroup>(largest, maxima);
  float sum[1] = {0.0F};
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    to_exponentials(values[vector], bits[vector], problem.scale, largest[0]);
    sum[0] = sum_of(values[vector], sum[0]);
  }
  group_reduce<Sum, kThreads, kGroup>(sum, sums);
  const float reciprocal = 1.0F / sum[0];
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    if (has_row && Row::column(vector) < keys) {
      to_shares(values[vector], bits[vector], reciprocal);
      store_typed<true>(problem.output, row * keys, Row::column(vector), keys, values[vector]);
    }
  }
}

// Any row: one block, in turns over its vectors.
template <bool kAligned>
__global__ void __launch_bounds__(kLoopThreads)
    softmax_forward_loop(const __grid_constant__ ForwardProblem problem) {
  __shared__ float maxima[1][kLoopThreads / kWarpSize];
  __shared__ float sums[1][kLoopThreads / kWarpSize];
  const int64_t keys = problem.visibility.keys;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kSourceVector;
  float values[kSourceVector];
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    const Visibility visibility = visibility_of(problem, row);
    const auto load = [&](int64_t col) {
      load_typed<kAligned>(problem.input, row * keys, col, keys, values);
      return visible_bits<kAligned>(visibility, col, keys);
    };
    float largest[1] = {kNothing};
    for (int64_t col = first; col < visibility.end; col += kLoopStep) {
      const unsigned bits = load(col);
      largest[0] = largest_of(values, bits, problem.scale, largest[0]);
    }
    group_reduce<Max, kLoopThreads, kLoopThreads>(largest, maxima);
    float sum[1] = {0.0F};
    for (int64_t col = first; col < visibility.end; col += kLoopStep) {
      to_exponentials(values, load(col), problem.scale, largest[0]);
      sum[0] = sum_of(values, sum[0]);
    }
    group_reduce<Sum, kLoopThreads, kLoopThreads>(sum, sums);
    const float reciprocal = 1.0F / sum[0];
    for (int64_t col = first; col < keys; col += kLoopStep) {
      const unsigned bits = col < visibility.end ? load(col) : 0U;
      to_exponentials(values, bits, problem.scale, largest[0]);
      to_shares(values, bits, reciprocal);
      store_typed<kAligned>(problem.output, row * keys, col, keys, values);
    }
    __syncthreads();  // the next row uses the scratch again
  }
}

struct BackwardProblem {
  TypedPointer grad_output;  // [rows, keys]
  TypedPointer output;       // [rows, keys]
  TypedPointer grad_input;   // [rows, keys]
  int64_t rows, keys;
  float scale;
};

__device__ __forceinline__ float dot(const float (&grad_output)[kSourceVector],
                                     const float (&output)[kSourceVector], float sum) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    sum = fmaf(grad_output[i], output[i], sum);
  }
  return sum;
}

template <bool kAligned>
__device__ __forceinline__ void put_gradient(const BackwardProblem& problem, int64_t row,
                                             int64_t col, float mean,
                                             float (&grad_output)[kSourceVector],
                                             const float (&output)[kSourceVector]) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    grad_output[i] = problem.scale * (grad_output[i] - mean) * output[i];
  }
  store_typed<kAligned>(problem.grad_input, row * problem.keys, col, problem.keys, grad_output);
}

// grad_output and output are of type T both.
template <class T, int kThreads, int kGroup>
__global__ void __launch_bounds__(kThreads, 512 / kThreads)
    softmax_backward_rows(const __grid_constant__ BackwardProblem problem) {
  __shared__ float sums[1][kThreads / kWarpSize];
  using Row = RowPart<T, kGroup, kVectors>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) +
                      static_cast<int>(threadIdx.x) / kGroup;
  // A group without a row goes along, for the barriers.
  const int64_t end = row < problem.rows ? problem.keys : 0;
  Row dy;
  Row y;
  dy.load(static_cast<const T*>(problem.grad_output.data) + row * problem.keys, end);
  y.load(static_cast<const T*>(problem.output.data) + row * problem.keys, end);
  float grad_output[kSourceVector];
  float output[kSourceVector];
  float sum[1] = {0.0F};
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    dy.get(vector, grad_output);
    y.get(vector, output);
    sum[0] = dot(grad_output, output, sum[0]);
  }
  group_reduce<Sum, kThreads, kGroup>(sum, sums);
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    if (Row::column(vector) < end) {
      dy.get(vector, grad_output);
      y.get(vector, output);
      put_gradient<true>(problem, row, Row::column(vector), sum[0], grad_output, output);
    }
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kLoopThreads)
    softmax_backward_loop(const __grid_constant__ BackwardProblem problem) {
  __shared__ float sums[1][kLoopThreads / kWarpSize];
  const int64_t keys = problem.keys;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kSourceVector;
  float grad_output[kSourceVector];
  float output[kSourceVector];
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    const auto load = [&](int64_t col) {
      load_typed<kAligned>(problem.grad_output, row * keys, col, keys, grad_output);
      load_typed<kAligned>(problem.output, row * keys, col, keys, output);
    };
    float sum[1] = {0.0F};
    for (int64_t col = first; col < keys; col += kLoopStep) {
      load(col);
      sum[0] = dot(grad_output, output, sum[0]);
    }
    group_reduce<Sum, kLoopThreads, kLoopThreads>(sum, sums);
    for (int64_t col = first; col < keys; col += kLoopStep) {
      load(col);
      put_gradient<kAligned>(problem, row, col, sum[0], grad_output, output);
    }
    __syncthreads();  // the next row uses the scratch again
  }
}

Launch loop_launch(const char* name, int64_t rows, const Context& context) {
  constexpr int64_t kMostBlocks = 1 << 20;
  return {.name = name,
          .grid = dim3(static_cast<unsigned>(std::min(rows, kMostBlocks))),
          .block = dim3(kLoopThreads),
          .stream = stream_of(context)};
}

Launch rows_launch(const char* name, int64_t rows, int threads, int group, const Context& context) {
  return {.name = name,
          .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(rows, threads / group))),
          .block = dim3(static_cast<unsigned>(threads)),
          .stream = stream_of(context)};
}

void run_softmax_forward(const SoftmaxForwardArgs& args, const Context& context) {
  if (args.input.numel() == 0) {
    return;
  }
  const ForwardProblem problem{.input = typed(args.input),
                               .output = typed(args.output),
                               .visibility = numerics::softmax_rows(args),
                               .rows = args.input.rows,
                               .scale = args.scale};
  const bool is_aligned =
      has_vector_rows(args.input) && has_vector_rows(args.output) &&
      has_aligned_rows(problem.visibility.mask, args.input.cols, 1, kSourceVector);
  bool is_done = false;
  if (is_aligned) {
    for_high_precision(args.input.dtype, [&](auto type) {
      is_done =
          for_row_group<kVectors>(problem.rows, args.input.cols, [&](auto threads, auto group) {
            launch(&softmax_forward_rows<typename decltype(type)::type, threads(), group()>,
                   rows_launch("softmax_forward_rows", problem.rows, threads(), group(), context),
                   problem);
          });
    });
  }
  if (!is_done) {
    for_bool(is_aligned, [&](auto aligned) {
      launch(&softmax_forward_loop<aligned()>,
             loop_launch("softmax_forward_loop", problem.rows, context), problem);
    });
  }
}

void run_softmax_backward(const SoftmaxBackwardArgs& args, const Context& context) {
  if (args.output.numel() == 0) {
    return;
  }
  const BackwardProblem problem{.grad_output = typed(args.grad_output),
                                .output = typed(args.output),
                                .grad_input = typed(args.grad_input),
                                .rows = args.output.rows,
                                .keys = args.output.cols,
                                .scale = args.scale};
  const bool is_aligned = has_vector_rows(args.grad_output) && has_vector_rows(args.output) &&
                          has_vector_rows(args.grad_input);
  bool is_done = false;
  if (is_aligned && args.grad_output.dtype == args.output.dtype) {
    for_high_precision(args.output.dtype, [&](auto type) {
      is_done = for_row_group<kVectors>(problem.rows, problem.keys, [&](auto threads, auto group) {
        launch(&softmax_backward_rows<typename decltype(type)::type, threads(), group()>,
               rows_launch("softmax_backward_rows", problem.rows, threads(), group(), context),
               problem);
      });
    });
  }
  if (!is_done) {
    for_bool(is_aligned, [&](auto aligned) {
      launch(&softmax_backward_loop<aligned()>,
             loop_launch("softmax_backward_loop", problem.rows, context), problem);
    });
  }
}

}  // namespace

TE_CUDA_ENTRY_POINT(SoftmaxForwardArgs, run_softmax_forward)
TE_CUDA_ENTRY_POINT(SoftmaxBackwardArgs, run_softmax_backward)

}  // namespace transformer_engine::cuda
