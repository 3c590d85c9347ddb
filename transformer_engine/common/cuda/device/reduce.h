// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over the lanes of a warp and the threads of a block. The order of additions is
// fixed, so that a result does not change from run to run.
#pragma once

#include "cuda/device/launch.h"
#include "numerics/scale.h"

namespace transformer_engine::cuda {

// The larger one; a NaN loses against a number. On the GPU that is one instruction, for every NaN;
// the C library's fmaxf makes an exception of signalling ones.
__device__ __forceinline__ float max_skip_nan(float a, float b) {
#if defined(TE_CUDA_EMULATED)
  return numerics::max_skip_nan(a, b);
#else
  return fmaxf(a, b);
#endif
}

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;
inline constexpr int kWarpSize = 32;

struct Sum {
  static constexpr float kIdentity = 0.0F;
  __device__ __forceinline__ static float combine(float a, float b) { return a + b; }
};
// Of numbers of 0 or more; skips NaN.
struct Max {
  static constexpr float kIdentity = 0.0F;
  __device__ __forceinline__ static float combine(float a, float b) { return max_skip_nan(a, b); }
};

// Every lane of each group of kWidth neighbours gets the group's result.
template <class Op, int kWidth = kWarpSize>
__device__ __forceinline__ float warp_reduce(float value) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) {
    value = Op::combine(value, __shfl_xor_sync(kAllLanes, value, distance, kWidth));
  }
  return value;
}

// Reduces several values at a time with fewer shuffles than one after another: of its kN values
// each lane keeps one half, the lower one where bit kDistance of its number is clear, and combines
// it with that of the lane whose number differs in this bit.
template <class Op, int kDistance, int kN>
__device__ __forceinline__ void reduce_halves(const float (&values)[kN], float (&half)[kN / 2]) {
  const bool keeps_upper = (threadIdx.x & kDistance) != 0;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const float kept = keeps_upper ? values[i + kN / 2] : values[i];
    const float given = keeps_upper ? values[i] : values[i + kN / 2];
    half[i] = Op::combine(kept, __shfl_xor_sync(kAllLanes, given, kDistance));
  }
}

// Every thread of a one-dimensional block of kThreads gets the result. `scratch` holds one number
// per warp; the caller separates two uses of it by a barrier of its own, or by giving each its own.
template <class Op, int kThreads>
__device__ __forceinline__ float block_reduce(float value, float (&scratch)[kThreads / kWarpSize]) {
  constexpr int kWarps = kThreads / kWarpSize;
  static_assert(kThreads % kWarpSize == 0 && kWarps <= kWarpSize && (kWarps & (kWarps - 1)) == 0);
  value = warp_reduce<Op>(value);
  if constexpr (kWarps == 1) {
    return value;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (lane == 0) {
    scratch[warp] = value;
  }
  __syncthreads();
  return warp_reduce<Op, kWarps>(scratch[lane % kWarps]);
}

// *address = max(*address, value) for value >= 0; a NaN at `address` loses.
__device__ __forceinline__ void atomic_max_skip_nan(float* address, float value) {
  auto* word = reinterpret_cast<unsigned*>(address);
  unsigned old = atomicAdd(word, 0U);
  while (!(__uint_as_float(old) >= value)) {
    const unsigned seen = atomicCAS(word, old, __float_as_uint(value));
    if (seen == old) {
      return;
    }
    old = seen;
  }
}

}  // namespace transformer_engine::cuda
