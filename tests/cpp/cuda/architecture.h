// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The compute capability of the emulated device, for a scope.
#pragma once

#include <cstdlib>

#include "cuda/runtime.h"

namespace transformer_engine::testing {

class Architecture {
 public:
  explicit Architecture(const char* capability) {
    setenv("CUDA_EMULATOR_ARCH", capability, 1);
    cuda::forget_devices();
  }
  ~Architecture() {
    unsetenv("CUDA_EMULATOR_ARCH");
    cuda::forget_devices();
  }
  Architecture(const Architecture&) = delete;
  Architecture& operator=(const Architecture&) = delete;
};

}  // namespace transformer_engine::testing
