// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What this build and this machine offer, as data for transformer_engine.report().
#pragma once

#include <transformer_engine/types.h>

#include <string>
#include <vector>

namespace transformer_engine {

struct BackendStatus {
  std::string name;  // "cpu (avx512bf16)", "cuda", "torch gemm"
  bool available = false;
  std::string reason;    // why not; empty when available
  std::string disables;  // what its absence disables
  std::string remedy;    // what the user can do
};
std::vector<BackendStatus> backend_statuses();
bool has_cuda_backend();  // whether this build has one; a device may be missing all the same
// Where ops on tensors in host memory run: on the CPU, or, in the build for tests that executes
// CUDA kernels on the CPU, on the emulated device.
DeviceType device_of_host_memory();

const char* core_version();         // text of build_tools/VERSION.txt at build time
const char* cpu_instruction_set();  // "base", "avx2", "avx512", "avx512bf16": the kernels chosen
                                    // for this process

}  // namespace transformer_engine

// core_version() under a C name: a loader asks for it before anything else of this library is used.
extern "C" const char* nvte_core_version();
