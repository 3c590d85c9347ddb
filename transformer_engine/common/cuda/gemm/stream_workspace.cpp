// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/stream_workspace.h"

#include <transformer_engine/error.h>

#include <map>
#include <mutex>
#include <utility>

namespace transformer_engine::cuda {

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

void* stream_workspace(int device, cudaStream_t stream, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, cudaStream_t>, void*> workspaces;
  const std::lock_guard lock(mutex);
  void*& workspace = workspaces[{device, stream}];
  if (workspace == nullptr) {
    const cudaError_t status = cudaMalloc(&workspace, bytes);
    TE_CHECK_AS(RuntimeError, status == cudaSuccess, "gemm: a workspace of ", bytes,
                " bytes cannot be allocated (", cudaGetErrorString(status),
                "); free device memory is required. Free some.");
  }
  return workspace;
}

}  // namespace transformer_engine::cuda
