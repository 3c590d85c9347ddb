// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Entry points of kernels that take every problem in device memory.
#pragma once

#include "cuda/entry_points.h"

// Defines EntryPoint<Args>, which runs `function(const Args&, const Context&)`. Stands in namespace
// transformer_engine::cuda.
#define TE_CUDA_ENTRY_POINT(Args, function)                                                        \
  template <>                                                                                      \
  const char* EntryPoint<Args>::refusal(const Args&, const Context& context) {                     \
    return context.device == DeviceType::kCUDA ? nullptr : "the tensors are not in device memory"; \
  }                                                                                                \
  template <>                                                                                      \
  void EntryPoint<Args>::run(const Args& args, const Context& context) {                           \
    function(args, context);                                                                       \
  }
