// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Device memory. In the plain build it is memory of its own, which host code cannot touch while no
// kernel runs, and an address of host memory among a kernel's arguments is reported: what would end
// in an illegal access on a GPU does so here. In the sanitizers' builds each allocation is an exact
// heap block, so that an overrun of one byte is seen.
#pragma once

#include <cstddef>

namespace cuda_emulator {

void* allocate_device_memory(size_t bytes);  // null where there is none left
void free_device_memory(void* memory);

// While one lives, the calling code acts for the device: kernels, copies, a library's stand-in.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// From now on device memory is the host's: for a framework whose tensors are in host memory.
void share_host_memory();

// Throws std::runtime_error when one of a kernel's arguments holds an address of host memory.
void check_arguments(const char* kernel, const void* arguments, size_t bytes);

}  // namespace cuda_emulator
