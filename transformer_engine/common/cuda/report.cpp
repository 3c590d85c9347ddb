// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <transformer_engine/error.h>

#include <string>

#include "cuda/attention_support.h"
#include "cuda/entry_points.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/runtime.h"

namespace transformer_engine::cuda {

namespace {

BackendStatus device_status() {
  std::string name =
      concat("cuda (built with ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
  if (device_count() == 0) {
    return {name + ")", false, "no usable CUDA device: none, or a driver that is too old",
            "modules on CUDA tensors", "install a driver for this CUDA version"};
  }
  for (int device = 0; device < device_count(); ++device) {
    name += concat(", device ", device, ": sm_", compute_capability(device));
  }
  return {name + ")", true, "", "", ""};
}

BackendStatus cublaslt_status() {
  const char* refusal = cublaslt_refusal();
  if (refusal != nullptr) {
    return {"cuBLASLt", false, refusal, "matrix products on CUDA tensors",
            "install a CUDA build of torch, or cuBLAS 12.8 or later"};
  }
  return {concat("cuBLASLt ", cublaslt_version()), true, "", "", ""};
}

}  // namespace

void append_statuses(std::vector<BackendStatus>& statuses) {
  statuses.push_back(device_status());
  if (device_count() != 0) {
    statuses.push_back(cublaslt_status());
    append_attention_status(statuses);
  }
}

}  // namespace transformer_engine::cuda

namespace transformer_engine {

bool has_cuda_backend() { return true; }

DeviceType device_of_host_memory() {
#if defined(TE_CUDA_EMULATED)
  return DeviceType::kCUDA;
#else
  return DeviceType::kCPU;
#endif
}

}  // namespace transformer_engine
