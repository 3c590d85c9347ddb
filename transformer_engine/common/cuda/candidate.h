// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Entry points of kernels that take every problem in device memory.
#pragma once

#include "cuda/entry_points.h"
#include "cuda/runtime.h"

#if defined(TE_CUDA_EMULATED)
namespace cuda_emulator {
// Callers are not instrumented. Where instrumented code has used the stack before, the
// initialisation check does not see what they write there, unless it is told.
void trust_host_stack();
}  // namespace cuda_emulator
#define TE_ENTER_EMULATED_BACKEND() cuda_emulator::trust_host_stack()
#else
#define TE_ENTER_EMULATED_BACKEND()
#endif

// Defines EntryPoint<Args>, which runs `function(const Args&, const Context&)`. Stands in namespace
// transformer_engine::cuda.
#define TE_CUDA_ENTRY_POINT(Args, function)                                                        \
  template <>                                                                                      \
  const char* EntryPoint<Args>::refusal(const Args&, const Context& context) {                     \
    TE_ENTER_EMULATED_BACKEND();                                                                   \
    return context.device == DeviceType::kCUDA ? nullptr : "the tensors are not in device memory"; \
  }                                                                                                \
  template <>                                                                                      \
  void EntryPoint<Args>::run(const Args& args, const Context& context) {                           \
    TE_ENTER_EMULATED_BACKEND();                                                                   \
    const DeviceScope scope(context.device_index);                                                 \
    function(args, context);                                                                       \
  }
