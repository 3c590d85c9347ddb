// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// kN elements moved by one load or store instruction of up to 16 bytes.
#pragma once

#include "cuda/device/launch.h"

namespace transformer_engine::cuda {

template <class T, int kN>
struct alignas(sizeof(T) * kN) Vec {
  static_assert(sizeof(T) * kN <= 16 && (kN & (kN - 1)) == 0);
  T v[kN];

  __device__ __forceinline__ static Vec load(const T* address) {
    check(address);
    return *reinterpret_cast<const Vec*>(address);
  }
  __device__ __forceinline__ void store(T* address) const {
    check(address);
    *reinterpret_cast<Vec*>(address) = *this;
  }

 private:
  __device__ __forceinline__ static void check([[maybe_unused]] const T* address) {
#if defined(TE_CUDA_EMULATED)  // a fault on the GPU, harmless on most CPUs
    if (reinterpret_cast<uintptr_t>(address) % sizeof(Vec) != 0) {
      cuda_emulator::device_fail("misaligned vector access");
    }
#endif
  }
};

// Elements of T in 16 bytes.
template <class T>
inline constexpr int kVectorSize = 16 / static_cast<int>(sizeof(T));

// Whether rows of `cols` elements of `element_bytes`, starting at `data`, all begin on a multiple
// of `bytes`; true for null.
inline bool has_aligned_rows(const void* data, int64_t cols, int64_t element_bytes,
                             int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 &&
         (data == nullptr || cols * element_bytes % bytes == 0);
}

}  // namespace transformer_engine::cuda
