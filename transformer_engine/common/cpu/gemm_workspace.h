// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scratch memory of the CPU GEMMs: one buffer per thread, kept from call to call, so that a small
// problem pays for no allocation. The callers' block sizes bound it to a few MiB.
#pragma once

#include <cstdint>
#include <optional>

#include "core/scratch.h"

namespace transformer_engine::cpu {

// At least `bytes`, on a cache line boundary, uninitialised. Valid until the thread's next call.
inline void* gemm_workspace(int64_t bytes) {
  thread_local std::optional<Scratch<char>> buffer;
  thread_local int64_t size_bytes = 0;
  if (bytes > size_bytes) {
    size_bytes = 0;  // what holds should the allocation fail
    buffer.emplace(bytes);
    size_bytes = bytes;
  }
  return buffer.has_value() ? buffer->data() : nullptr;
}

}  // namespace transformer_engine::cpu
