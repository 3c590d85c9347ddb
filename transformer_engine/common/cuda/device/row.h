// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rows that stay in registers between the passes of a kernel over them. A group of threads, a warp
// or the whole block, holds a row: vectors of kSourceVector elements, dealt to its threads in turn,
// so that neighbouring threads read neighbouring addresses. They are kept as they were read: half
// the registers of FP32 for two-byte types, and all loads of a row are under way together.
#pragma once

#include "cuda/device/reduce.h"
#include "cuda/device/source.h"

namespace transformer_engine::cuda {

// What one thread of a group of kGroup holds. Rows must allow vectors and have a multiple of
// kSourceVector columns.
template <class T, int kGroup, int kVectors>
struct RowPart {
  static constexpr int kWidth = kSourceVector < kVectorSize<T> ? kSourceVector : kVectorSize<T>;
  static constexpr int kCapacity = kGroup * kVectors * kSourceVector;  // columns of a whole group
  Vec<T, kWidth> raw[kVectors][kSourceVector / kWidth];

  // First column of the thread's vector number `vector`.
  __device__ __forceinline__ static int column(int vector) {
    return (vector * kGroup + static_cast<int>(threadIdx.x) % kGroup) * kSourceVector;
  }
  // Vectors that begin at `end` or beyond are zeros and are not read.
  __device__ __forceinline__ void load(const T* row, int64_t end) {
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
      for (int i = 0; i < kSourceVector / kWidth; ++i) {
        raw[vector][i] = column(vector) < end
                             ? Vec<T, kWidth>::load(row + column(vector) + i * kWidth)
                             : Vec<T, kWidth>{};
      }
    }
  }
  __device__ __forceinline__ void get(int vector, float (&values)[kSourceVector]) const {
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      values[i] = to_float(raw[vector][i / kWidth].v[i % kWidth]);
    }
  }
};

// Reduces each of kCount numbers over the caller's group: a warp, or the block of kThreads with one
// barrier. The caller separates two uses of `scratch`.
template <class Op, int kThreads, int kGroup, int kCount>
__device__ __forceinline__ void group_reduce(float (&values)[kCount],
                                             float (&scratch)[kCount][kThreads / kWarpSize]) {
  static_assert(kGroup == kWarpSize || kGroup == kThreads);
  constexpr int kWarps = kThreads / kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = warp_reduce<Op>(values[i]);
    if (kGroup != kWarpSize && lane == 0) {
      scratch[i][warp] = values[i];
    }
  }
  if constexpr (kGroup != kWarpSize) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = warp_reduce<Op, kWarps>(scratch[i][lane % kWarps]);
    }
  }
}

// The smallest group whose registers hold a row of `cols` columns: calls body(threads of a block,
// threads of a group), both std::integral_constant. False where none does, and for more rows than a
// grid has blocks.
template <int kVectors, class Body>
bool for_row_group(int64_t rows, int64_t cols, const Body& body) {
  constexpr int64_t kPerThread = kVectors * kSourceVector;
  constexpr int64_t kMaxBlocks = 0x7FFFFFFF;
  if (rows > kMaxBlocks) {
    return false;
  }
  if (cols <= kWarpSize * kPerThread) {
    body(std::integral_constant<int, 128>{}, std::integral_constant<int, kWarpSize>{});
  } else if (cols <= 128 * kPerThread) {
    body(std::integral_constant<int, 128>{}, std::integral_constant<int, 128>{});
  } else if (cols <= 256 * kPerThread) {
    body(std::integral_constant<int, 256>{}, std::integral_constant<int, 256>{});
  } else if (cols <= 512 * kPerThread) {
    body(std::integral_constant<int, 512>{}, std::integral_constant<int, 512>{});
  } else {
    return false;
  }
  return true;
}

}  // namespace transformer_engine::cuda
