// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Device memory with a host copy. Bytes that no kernel writes are 0xff: NaN and -1.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>

namespace cuda_emulator_selftest {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count), host_(new T[count]) {
    must(cudaMalloc(reinterpret_cast<void**>(&device_), count * sizeof(T)));
    must(cudaMemsetAsync(device_, 0xff, count * sizeof(T), nullptr));
  }
  ~DeviceArray() { cudaFree(device_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T& operator[](size_t i) { return host_[i]; }
  T* device() { return device_; }
  T* upload() {
    must(
        cudaMemcpyAsync(device_, host_.get(), count_ * sizeof(T), cudaMemcpyHostToDevice, nullptr));
    return device_;
  }
  void download() {
    must(cudaDeviceSynchronize());
    must(
        cudaMemcpyAsync(host_.get(), device_, count_ * sizeof(T), cudaMemcpyDeviceToHost, nullptr));
    must(cudaDeviceSynchronize());
  }

 private:
  static void must(cudaError_t status) {
    if (status != cudaSuccess) {
      throw std::runtime_error(cudaGetErrorString(status));
    }
  }
  size_t count_;
  std::unique_ptr<T[]> host_;
  T* device_ = nullptr;
};

}  // namespace cuda_emulator_selftest
