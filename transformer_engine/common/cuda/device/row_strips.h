// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One pass over a matrix whose results are wanted row-wise, with sums over rows and over columns:
//   output[r, c]           the value, rounded to the strip's element type
//   data[r, c]             FP8 of the rounded value, and amax and scale_inv (device/per_tensor.h)
//   column_partials[k, c]  sums of the unrounded values over the rows of chunk k
//   row_partials[s, r]     sums over the columns of strip s of a term of its own
// A warp takes 32 * kN neighbouring columns, a strip, of one row at a time; the eight warps of a
// block take the rows of a chunk of 64 in turn, each fetching its next row before it computes. So a
// thread keeps its columns, and sums them in registers. Every operand is read once, in runs of up
// to 512 bytes; the partial sums are 1/64 and 1/256 of the elements. The order of additions depends
// on the shape alone, and on kN that of a row. A strip is a small struct passed by value:
//   using Element = ...;
//   static constexpr int kHalves;           // results per column, 1 or 2
//   static constexpr bool kHasSums;         // whether sums may be wanted of it
//   template <int kN> using Columns;        // (shared(), col), Raw fetch(row): kN columns
//   evaluate(columns, raw, values[kHalves][kN]) -> term of the row's sum
//   result_column(col, half)                // where in a row of the result they go
//   bool allow_vectors() const;             // host: whether kN may be kSourceVector
#pragma once

#include "cuda/device/per_tensor.h"

namespace transformer_engine::cuda {

namespace row_strips {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kChunk = 64;  // rows of a block

template <class T>
struct Outputs {
  PerTensorOutputs<T> values;        // data_transpose and noop are not served
  float* column_partials = nullptr;  // [chunks, result_cols]
  float* row_partials = nullptr;     // [strips, rows]
};

struct Shape {
  int64_t rows;
  int64_t cols;         // that strips run over
  int64_t result_cols;  // of output, data and column_partials
  int64_t strips = 0;

  int64_t chunks() const { return divide_up<int64_t>(rows, kChunk); }
};

constexpr int vector_size(bool is_fast) { return is_fast ? kSourceVector : 1; }
inline int64_t strip_count(int64_t cols, bool is_fast) {
  return divide_up<int64_t>(cols, kWarpSize * vector_size(is_fast));
}

// Rounds `values` and writes them at `index`. Returns the larger of `amax` and theirs.
template <class T, int kN>
__device__ __forceinline__ float put(const Outputs<T>& outputs, int64_t index, float scale,
                                     float amax, float (&values)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    values[i] = to_float(from_float<T>(values[i]));
  }
  if (outputs.values.output != nullptr) {
    store_floats<kN, true>(outputs.values.output + index, values);
  }
  if (outputs.values.data != nullptr) {
    per_tensor::encode_vector(values, scale, outputs.values.is_e5m2)
        .store(outputs.values.data + index);
  }
  return per_tensor::amax_of(values, amax);
}

// Adds the sums of the block's warps, and writes those of this warp's columns. A warp's sums of one
// half lie in shared memory as [kN][32].
template <int kHalves, int kN>
__device__ __forceinline__ void write_column_sums(const float (&sums)[kHalves][kN], float* shared,
                                                  float* partials, const int64_t (&at)[kHalves],
                                                  bool is_inside) {
  constexpr int kPerWarp = kN * kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    if (half > 0) {
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      shared[warp * kPerWarp + i * kWarpSize + lane] = sums[half][i];
    }
    __syncthreads();
    // Warp w adds column w of every lane.
    for (int i = warp; i < kN; i += kWarps) {
      float sum = 0.0F;
#pragma unroll
      for (int other = 0; other < kWarps; ++other) {
        sum += shared[other * kPerWarp + i * kWarpSize + lane];
      }
      if (is_inside) {
        partials[at[half] + i] = sum;
      }
    }
  }
}

// Blocks that are to fit on a multiprocessor: leaves 128 registers for gated gradients and for
// FP32, 80 for the others, 64 where a thread has one column.
template <class Strip, int kN>
inline constexpr int kBlocksPerMultiprocessor =
    kN == 1                                                       ? 4
    : Strip::kHalves == 2 || sizeof(typename Strip::Element) == 4 ? 2
                                                                  : 3;

template <class Strip, int kN>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<Strip, kN>)
    row_strips_pass(const Strip strip, const Outputs<typename Strip::Element> outputs,
                    const Shape shape) {
  TE_DYNAMIC_SHARED(float, shared);  // kWarps * kN * 32 where column sums are wanted
  __shared__ float warp_amax[kWarps];
  const float scale = outputs.values.scale != nullptr ? *outputs.values.scale : 1.0F;
  if (outputs.values.scale_inv != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *outputs.values.scale_inv = numerics::inverse_scale(scale);
  }
  if (shape.rows == 0 || shape.cols == 0) {
    return;
  }
  const int64_t chunk = blockIdx.x / shape.strips;
  const int64_t strip_index = blockIdx.x - chunk * shape.strips;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t col = (strip_index * kWarpSize + lane) * kN;
  const bool is_inside = col < shape.cols;
  const typename Strip::template Columns<kN> columns(strip.shared(), is_inside ? col : 0);
  int64_t result_col[Strip::kHalves];
  float sums[Strip::kHalves][kN] = {};
#pragma unroll
  for (int half = 0; half < Strip::kHalves; ++half) {
    result_col[half] = strip.result_column(is_inside ? col : 0, half);
  }
  const int64_t end = shape.rows < (chunk + 1) * kChunk ? shape.rows : (chunk + 1) * kChunk;
  int64_t row = chunk * kChunk + static_cast<int>(threadIdx.x) / kWarpSize;
  float amax = 0.0F;
  typename Strip::template Columns<kN>::Raw raw{};
  if (is_inside && row < end) {
    raw = columns.fetch(row);
  }
#pragma unroll 1  // the next row is under way already
  for (; row < end; row += kWarps) {
    const auto current = raw;
    if (is_inside && row + kWarps < end) {
      raw = columns.fetch(row + kWarps);
    }
    float term = 0.0F;
    if (is_inside) {
      float values[Strip::kHalves][kN];
      term = strip.evaluate(columns, current, values);
#pragma unroll
      for (int half = 0; half < Strip::kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          if constexpr (Strip::kHasSums) {
            sums[half][i] += values[half][i];
          }
        }
        amax = put(outputs, row * shape.result_cols + result_col[half], scale, amax, values[half]);
      }
    }
    if (Strip::kHasSums && outputs.row_partials != nullptr) {
      term = warp_reduce<Sum>(term);
      if (lane == 0) {
        outputs.row_partials[strip_index * shape.rows + row] = term;
      }
    }
  }
  if (Strip::kHasSums && outputs.column_partials != nullptr) {
    write_column_sums(sums, shared, outputs.column_partials + chunk * shape.result_cols, result_col,
                      is_inside);
  }
  if (outputs.values.amax != nullptr) {
    amax = block_reduce<Max, kThreads>(amax, warp_amax);
    if (threadIdx.x == 0) {
      atomic_max_skip_nan(outputs.values.amax, amax);
    }
  }
}

}  // namespace row_strips

// Runs it; shape.strips is strip_count(). `is_fast`: vectors, which strip and outputs allow.
template <class Strip>
void run_row_strips(const Strip& strip, const row_strips::Outputs<typename Strip::Element>& outputs,
                    row_strips::Shape shape, bool is_fast, cudaStream_t stream) {
  using namespace row_strips;
  for_bool(is_fast, [&](auto fast) {
    constexpr int kN = vector_size(fast());
    // An empty matrix has a block all the same, for scale_inv.
    const int64_t blocks = shape.chunks() * shape.strips;
    const size_t shared =
        outputs.column_partials != nullptr ? sizeof(float) * kThreads * kN : size_t{0};
    launch(&row_strips_pass<Strip, kN>,
           {.name = "row_strips_pass",
            .grid = dim3(static_cast<unsigned>(blocks > 0 ? blocks : 1)),
            .block = dim3(kThreads),
            .dynamic_shared_bytes = shared,
            .stream = stream},
           strip, outputs, shape);
  });
}

template <class T>
bool allow_vectors(const PerTensorOutputs<T>& outputs, int64_t cols) {
  return cols % kSourceVector == 0 && has_aligned_rows(outputs.output, cols, sizeof(T)) &&
         has_aligned_rows(outputs.data, cols, 1, kSourceVector);
}

}  // namespace transformer_engine::cuda
