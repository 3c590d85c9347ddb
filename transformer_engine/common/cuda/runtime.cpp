// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

namespace transformer_engine::cuda {

namespace {

struct Device {
  int multiprocessors = 0;
  int compute_capability = 0;
};

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

std::vector<Device> find_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // an absent driver is no error of a later call
    count = 0;
  }
  std::vector<Device> all(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    all[static_cast<size_t>(i)] = {attribute_of(i, cudaDevAttrMultiProcessorCount),
                                   10 * attribute_of(i, cudaDevAttrComputeCapabilityMajor) +
                                       attribute_of(i, cudaDevAttrComputeCapabilityMinor)};
  }
  return all;
}

std::vector<Device>& devices() {
  static std::vector<Device> found = find_devices();
  return found;
}

// Zeros for a device that is not there: what cannot run refuses by them.
Device facts_of(int device) {
  const auto index = static_cast<size_t>(device);
  return index < devices().size() ? devices()[index] : Device{};
}

}  // namespace

int device_count() { return static_cast<int>(devices().size()); }
int multiprocessor_count(int device) { return facts_of(device).multiprocessors; }
int compute_capability(int device) { return facts_of(device).compute_capability; }

void forget_devices() { devices() = find_devices(); }

DeviceScope::DeviceScope(int device) {
  if (cudaGetDevice(&previous_) == cudaSuccess && previous_ != device) {
    is_changed_ = cudaSetDevice(device) == cudaSuccess;
  }
}
DeviceScope::~DeviceScope() {
  if (is_changed_) {
    cudaSetDevice(previous_);
  }
}

unsigned grid_stride_blocks(int64_t count, int64_t items_per_block, int device) {
  constexpr int64_t kBlocksPerMultiprocessor = 16;  // two waves of eight blocks of 256 threads
  const int64_t wanted = (count + items_per_block - 1) / items_per_block;
  const int64_t most = multiprocessor_count(device) * kBlocksPerMultiprocessor;
  return static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
}

}  // namespace transformer_engine::cuda
