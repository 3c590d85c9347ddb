// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a launch may ask for, and how the environment wants it run (emulator.h).
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "emulator.h"

namespace cuda_emulator {

constexpr int kMaxThreads = 1024;                      // of a block
constexpr int kMaxDynamicSharedBytes = 227 * 1024;     // of compute capability 9.0 and 10.0
constexpr int kUnaskedDynamicSharedBytes = 48 * 1024;  // more needs cudaFuncSetAttribute

// What cudaFuncSetAttribute allowed a kernel.
void set_shared_memory_limit(const void* kernel, int bytes);

// Why a GPU would refuse the launch, or empty.
std::string launch_error(const Grid& grid);

enum class Order { kForward, kReverse, kRandom };
struct Options {
  Order order = Order::kForward;
  unsigned long long seed = 1;
  bool has_dirty_memory = true;
  bool is_strict = true;
};
Options read_options();

}  // namespace cuda_emulator
