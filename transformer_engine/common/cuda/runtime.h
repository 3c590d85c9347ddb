// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the host side of kernels asks of the device. Answers are read once per process.
#pragma once

#include <cstdint>

namespace transformer_engine::cuda {

// Usable devices; 0 for every reason why there is none (no driver, too old a driver, no GPU).
int device_count();
int multiprocessor_count(int device);  // 0 where there is no such device
int compute_capability(int device);    // 80, 90, 100: major * 10 + minor; 0 likewise
void forget_devices();                 // for tests: they are asked again

// Makes a device current, and the one before again when it dies.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool is_changed_ = false;
};

// Blocks for grid-stride loops over `count` items of `items_per_block` each: enough to fill the
// device several times over, never more than there is work.
unsigned grid_stride_blocks(int64_t count, int64_t items_per_block, int device);

}  // namespace transformer_engine::cuda
