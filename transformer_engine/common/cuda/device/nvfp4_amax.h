// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The amax of NVFP4: of an input [M, K], of each of its rows, and of its Hadamard transform along M
// (numerics/hadamard.h), NaN skipped. The order in which maxima are taken does not matter, so
// blocks meet in atomics. Every kernel reads the input once and writes next to nothing.
#pragma once

#include "cuda/device/reduce.h"
#include "cuda/device/source.h"
#include "numerics/hadamard.h"

namespace transformer_engine::cuda::nvfp4 {

constexpr int kAmaxThreads = 256;

struct Amaxes {
  float* rowwise;     // [1], or null
  float* columnwise;  // [1], or null
  float* rows;        // [M], or null
  const float* noop;  // [1], or null

  __device__ __forceinline__ bool is_noop() const { return noop != nullptr && *noop != 0.0F; }
};

// The input as segments of `length` elements; the last one may be shorter. Where each row has an
// amax, segments are rows.
struct Segments {
  int64_t count, length, numel;
};

// A block takes one segment after another, a thread 16 bytes at a time.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kAmaxThreads)
    nvfp4_amax_segments(const T* __restrict__ input, const Segments segments, const Amaxes amaxes) {
  __shared__ float warp_amax[kAmaxThreads / kWarpSize];
  if (amaxes.is_noop()) {
    return;
  }
  constexpr int kVector = kVectorSize<T>;
  float largest = 0.0F;
  for (int64_t segment = blockIdx.x; segment < segments.count; segment += gridDim.x) {
    const int64_t begin = segment * segments.length;
    const int64_t rest = segments.numel - begin;
    const int64_t length = rest < segments.length ? rest : segments.length;
    const MatrixSource<T> source{input + begin, length};
    float amax = 0.0F;
#pragma unroll 4
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kVector; i < length;
         i += kAmaxThreads * kVector) {
      float values[kVector];
      load_rounded<kVector, kAligned>(source, 0, i, length, values);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        amax = max_skip_nan(amax, fabsf(values[j]));
      }
    }
    largest = max_skip_nan(largest, amax);
    if (amaxes.rows != nullptr) {
      __syncthreads();  // the last segment's use of warp_amax
      amax = block_reduce<Max, kAmaxThreads>(amax, warp_amax);
      if (threadIdx.x == 0) {
        amaxes.rows[segment] = amax;
      }
    }
  }
  if (amaxes.rowwise == nullptr && amaxes.columnwise == nullptr) {
    return;
  }
  __syncthreads();
  largest = block_reduce<Max, kAmaxThreads>(largest, warp_amax);
  if (threadIdx.x == 0) {
    if (amaxes.rowwise != nullptr) {
      atomic_max_skip_nan(amaxes.rowwise, largest);
    }
    if (amaxes.columnwise != nullptr) {
      atomic_max_skip_nan(amaxes.columnwise, largest);
    }
  }
}

constexpr int kAmaxColumns = 2;  // of a thread: four bytes of a two-byte type
constexpr int kAmaxChunk = kAmaxThreads * kAmaxColumns;

// The largest magnitudes of 16 rows of kAmaxColumns columns, before and after the transform; that
// after it without the transform's factor, which is applied to the maximum.
struct BeforeAndAfter {
  float before, after;
};

template <class T, bool kAligned>
__device__ __forceinline__ BeforeAndAfter transformed_amax(const T* input, int64_t rows,
                                                           int64_t cols, int64_t row, int64_t col,
                                                           uint16_t signs) {
  constexpr int kSize = numerics::kHadamardSize;
  float values[kAmaxColumns][kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    float pair[kAmaxColumns] = {};
    if (row + i < rows) {
      load_rounded<kAmaxColumns, kAligned>(MatrixSource<T>{input, cols}, row + i, col, cols, pair);
    }
#pragma unroll
    for (int j = 0; j < kAmaxColumns; ++j) {
      values[j][i] = pair[j];
    }
  }
  BeforeAndAfter amax{};
#pragma unroll
  for (int j = 0; j < kAmaxColumns; ++j) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      amax.before = max_skip_nan(amax.before, fabsf(values[j][i]));
      const uint32_t sign = static_cast<uint32_t>(signs >> i) << 31;
      values[j][i] = __uint_as_float(__float_as_uint(values[j][i]) ^ sign);
    }
    numerics::walsh_hadamard(values[j]);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      amax.after = max_skip_nan(amax.after, fabsf(values[j][i]));
    }
  }
  return amax;
}

// Items are groups of 16 rows by chunks of columns; a block takes one after another. The columnwise
// amax is that of the transform.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kAmaxThreads)
    nvfp4_amax_transformed(const T* __restrict__ input, const int64_t rows, const int64_t cols,
                           const uint16_t signs, const Amaxes amaxes) {
  __shared__ float warp_before[kAmaxThreads / kWarpSize];
  __shared__ float warp_after[kAmaxThreads / kWarpSize];
  if (amaxes.is_noop()) {
    return;
  }
  const int64_t chunks = divide_up<int64_t>(cols, kAmaxChunk);
  const int64_t items = divide_up<int64_t>(rows, numerics::kHadamardSize) * chunks;
  float before = 0.0F;
  float after = 0.0F;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t row = item / chunks * numerics::kHadamardSize;
    const int64_t col =
        item % chunks * kAmaxChunk + static_cast<int64_t>(threadIdx.x) * kAmaxColumns;
    if (col < cols) {
      const auto amax = transformed_amax<T, kAligned>(input, rows, cols, row, col, signs);
      before = max_skip_nan(before, amax.before);
      after = max_skip_nan(after, amax.after);
    }
  }
  before = block_reduce<Max, kAmaxThreads>(before, warp_before);
  after = block_reduce<Max, kAmaxThreads>(after, warp_after);
  if (threadIdx.x != 0) {
    return;
  }
  if (amaxes.rowwise != nullptr) {
    atomic_max_skip_nan(amaxes.rowwise, before);
  }
  atomic_max_skip_nan(amaxes.columnwise, after * numerics::kHadamardScale);
}

}  // namespace transformer_engine::cuda::nvfp4
