// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Functions a framework binding lends to the core: where its operator is the best implementation on
// a device, the core's candidate list calls it through this table. The core works without any of
// them.
#pragma once

#include <transformer_engine/gemm.h>

#include <cstddef>

namespace transformer_engine {

struct FrameworkFunctions {
  const char* name = nullptr;  // for reports, for example "torch 2.13.0"
  // High-precision GEMM on the CPU, one dtype for a, b, bias and d (FP32 or BF16); no epilogue;
  // accumulate allowed. Views with framework_tensor set are used as they are. Returns false to
  // refuse.
  bool (*gemm_cpu)(const GemmArgs& args) = nullptr;
  // Device memory on context's device, in the order of its stream; both or none. allocate_device
  // throws where there is no more memory.
  void* (*allocate_device)(size_t bytes, const Context& context) = nullptr;
  void (*free_device)(void* memory, const Context& context) = nullptr;
  // Whether FP32 products on CUDA may round their operands to TF32; null means no.
  bool (*allows_tf32)() = nullptr;
};

void register_framework_functions(const FrameworkFunctions& functions);
const FrameworkFunctions& framework_functions();

}  // namespace transformer_engine
