// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "launch_rules.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace cuda_emulator {

namespace {

std::mutex mutex;  // threads of a process launch at once
std::map<const void*, int>& limits() {
  static std::map<const void*, int> of_kernels;
  return of_kernels;
}

int shared_memory_limit(const void* kernel) {
  const std::lock_guard lock(mutex);
  const auto limit = limits().find(kernel);
  return limit != limits().end() ? limit->second : kUnaskedDynamicSharedBytes;
}

}  // namespace

void set_shared_memory_limit(const void* kernel, int bytes) {
  const std::lock_guard lock(mutex);
  limits()[kernel] = bytes;
}

std::string launch_error(const Grid& grid) {
  const int allowed = shared_memory_limit(grid.kernel);
  const size_t threads = static_cast<size_t>(grid.block.x) * grid.block.y * grid.block.z;
  if (threads == 0 || threads > kMaxThreads || grid.block.z > 64) {
    return "a block of " + std::to_string(threads) + " threads";
  }
  if (grid.grid.x == 0 || grid.grid.y == 0 || grid.grid.z == 0 || grid.grid.x > 2147483647u ||
      grid.grid.y > 65535 || grid.grid.z > 65535) {
    return "a grid of " + std::to_string(grid.grid.x) + " x " + std::to_string(grid.grid.y) +
           " x " + std::to_string(grid.grid.z) + " blocks";
  }
  if (grid.dynamic_shared_bytes > static_cast<size_t>(allowed)) {
    return std::to_string(grid.dynamic_shared_bytes) + " bytes of dynamic shared memory, " +
           std::to_string(allowed) + " are allowed";
  }
  return {};
}

Options read_options() {
  Options options;
  if (const char* order = std::getenv("CUDA_EMULATOR_ORDER")) {
    if (std::strncmp(order, "reverse", 7) == 0) {
      options.order = Order::kReverse;
    } else if (std::strncmp(order, "random", 6) == 0) {
      options.order = Order::kRandom;
      const char* seed = std::strchr(order, ':');
      options.seed = seed != nullptr ? std::strtoull(seed + 1, nullptr, 10) * 2 + 1 : 1;
    }
  }
  const auto is_on = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr || *value != '0';
  };
  options.has_dirty_memory = is_on("CUDA_EMULATOR_POISON");
  options.is_strict = is_on("CUDA_EMULATOR_STRICT");
  return options;
}

}  // namespace cuda_emulator
