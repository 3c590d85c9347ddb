// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/entry_points.h"
#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

void append_statuses(std::vector<BackendStatus>& statuses) {
  statuses.push_back({"cuda", false, kNoCuda, "modules on CUDA tensors",
                      "install a CUDA build of torch and a CUDA toolkit, and build again; "
                      "NVTE_USE_CUDA=1 insists"});
}

}  // namespace transformer_engine::cuda

namespace transformer_engine {

bool has_cuda_backend() { return false; }

DeviceType device_of_host_memory() { return DeviceType::kCPU; }

}  // namespace transformer_engine
