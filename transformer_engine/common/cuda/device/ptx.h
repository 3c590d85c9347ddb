// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Wrappers of PTX. Kernels call these and contain no asm themselves, so that each instruction has
// exactly one device body and one body for the emulator.
#pragma once

#include "cuda/device/launch.h"

namespace transformer_engine::cuda::ptx {

// Copies 16 bytes from global to shared memory without registers; both 16-byte aligned.
__device__ __forceinline__ void cp_async16(void* shared_target, const void* global_source) {
#if defined(TE_CUDA_EMULATED)
  cuda_emulator::cp_async(shared_target, global_source, 16);
#else
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(shared_target));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(global_source)
               : "memory");
#endif
}

__device__ __forceinline__ void cp_async_commit() {
#if defined(TE_CUDA_EMULATED)
  cuda_emulator::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of the thread's committed groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
#if defined(TE_CUDA_EMULATED)
  cuda_emulator::cp_async_wait(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// 1 / value within one ulp, in one instruction; denormals count as 0.
__device__ __forceinline__ float approximate_reciprocal(float value) {
#if defined(TE_CUDA_EMULATED)
  return 1.0F / value;
#else
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
#endif
}

}  // namespace transformer_engine::cuda::ptx
