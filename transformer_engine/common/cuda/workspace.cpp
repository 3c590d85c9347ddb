// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/workspace.h"

#include <cuda_runtime_api.h>
#include <transformer_engine/error.h>
#include <transformer_engine/framework.h>

namespace transformer_engine::cuda {

namespace {

thread_local HeldWorkspaces* holder = nullptr;

void give_back(char* data, const Context& context) {
  const FrameworkFunctions& framework = framework_functions();
  if (framework.free_device != nullptr) {
    framework.free_device(data, context);
  } else {
    cudaFreeAsync(data, static_cast<cudaStream_t>(context.stream));
  }
}

}  // namespace

Workspace::Workspace(const char* op, int64_t bytes, const Context& context) : context_(context) {
  if (bytes <= 0) {
    return;
  }
  const FrameworkFunctions& framework = framework_functions();
  if (framework.allocate_device != nullptr) {
    data_ = static_cast<char*>(framework.allocate_device(static_cast<size_t>(bytes), context));
    return;
  }
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes),
                                             static_cast<cudaStream_t>(context.stream));
  TE_CHECK_AS(RuntimeError, status == cudaSuccess, op, ": a workspace of ", bytes,
              " bytes cannot be allocated (", cudaGetErrorString(status),
              "); free device memory is required. Free some, or use smaller tensors.");
  data_ = static_cast<char*>(memory);
}

Workspace::~Workspace() {
  if (data_ == nullptr) {
    return;
  }
  if (holder != nullptr) {
    holder->pieces_.emplace_back(data_, context_);
  } else {
    give_back(data_, context_);
  }
}

HeldWorkspaces::HeldWorkspaces() : before_(holder) { holder = this; }

HeldWorkspaces::~HeldWorkspaces() {
  holder = before_;
  for (const auto& [data, context] : pieces_) {
    give_back(data, context);
  }
}

}  // namespace transformer_engine::cuda
