// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cuda_emulator {

constexpr int kMaxDynamicSharedBytes = 227 * 1024;     // of compute capability 9.0 and 10.0
constexpr int kUnaskedDynamicSharedBytes = 48 * 1024;  // more needs cudaFuncSetAttribute

// What cudaFuncSetAttribute allowed a kernel.
void set_shared_memory_limit(const void* kernel, int bytes);

}  // namespace cuda_emulator
