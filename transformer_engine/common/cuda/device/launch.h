// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The first header of every kernel source, and the only way to start a kernel. The same source is
// compiled by nvcc for GPUs, and, with TE_CUDA_EMULATED, by a C++ compiler for the emulator in
// tests/cuda_emulator, which runs it on the CPU and checks it.
//
// Rules for kernel sources, which make that possible:
//   - start kernels with launch(), template arguments written out; never <<<>>>
//   - static __shared__ as usual; dynamic shared memory through TE_DYNAMIC_SHARED
//   - PTX in device/ptx.h alone, each wrapper with a body for the emulator
//   - vector access through Vec (device/vector.h)
//   - results do not depend on __CUDA_ARCH__: what differs by architecture is a template parameter
//   - _sync intrinsics, and __syncwarp wherever lanes exchange through shared memory
// Arithmetic is compiled without contraction (--fmad=false): a fused multiply-add is written fmaf.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
// nvcc does not keep that this is a system header, and it has unused parameters.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <cuda_fp4.h>
#pragma GCC diagnostic pop
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <transformer_engine/error.h>
#include <transformer_engine/types.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#if defined(TE_CUDA_EMULATED)
#include "emulator.h"
#endif

namespace transformer_engine::cuda {

struct Launch {
  const char* name;  // of the kernel: for error messages and for the list of those tested
  dim3 grid;
  dim3 block;
  size_t dynamic_shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

inline void check_cuda(cudaError_t status, const char* what, const char* kernel) {
  TE_CHECK_AS(RuntimeError, status == cudaSuccess, kernel, ": ", what, " failed with \"",
              cudaGetErrorString(status),
              "\"; a working device is required. CUDA_LAUNCH_BLOCKING=1 names the call at fault.");
}

constexpr size_t kDynamicSharedWithoutAsking = 48 * 1024;

template <class... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), const Launch& config) {
  if (config.dynamic_shared_bytes > kDynamicSharedWithoutAsking) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(config.dynamic_shared_bytes)),
               "cudaFuncSetAttribute", config.name);
  }
}

#if defined(TE_CUDA_EMULATED)

template <class... Parameters>
struct EmulatedCall {
  std::tuple<Parameters...> arguments;
  void (*kernel)(Parameters...);

  // Every thread has copies of its own.
  static void run(void* self) {
    const auto* call = static_cast<const EmulatedCall*>(self);
    std::apply(call->kernel, call->arguments);
  }
};
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Arguments&&... arguments) {
  allow_shared_memory(kernel, config);
  EmulatedCall<Parameters...> call{
      std::tuple<Parameters...>(static_cast<Parameters>(std::forward<Arguments>(arguments))...),
      kernel};
#if !defined(__clang__)
  __builtin_clear_padding(&call);  // what lies there must not look like an address
#endif
  cuda_emulator::run_grid(
      {config.name, reinterpret_cast<const void*>(kernel), config.grid, config.block,
       config.dynamic_shared_bytes, sizeof call.arguments, config.stream},
      &EmulatedCall<Parameters...>::run, &call);
}

#define TE_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(cuda_emulator::dynamic_shared_memory())

#else

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Arguments&&... arguments) {
  allow_shared_memory(kernel, config);
  cudaLaunchConfig_t cuda_config{};
  cuda_config.gridDim = config.grid;
  cuda_config.blockDim = config.block;
  cuda_config.dynamicSmemBytes = config.dynamic_shared_bytes;
  cuda_config.stream = config.stream;
  check_cuda(cudaLaunchKernelEx(&cuda_config, kernel,
                                static_cast<Parameters>(std::forward<Arguments>(arguments))...),
             "kernel launch", config.name);
}

#define TE_DYNAMIC_SHARED(type, name)                                        \
  extern __shared__ __align__(1024) unsigned char te_dynamic_shared_bytes[]; \
  type* const name = reinterpret_cast<type*>(te_dynamic_shared_bytes)

#endif

inline cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream);
}

// ceil(a / b) for a >= 0, b > 0.
template <class Int>
__host__ __device__ constexpr Int divide_up(Int a, Int b) {
  return (a + b - 1) / b;
}

}  // namespace transformer_engine::cuda
