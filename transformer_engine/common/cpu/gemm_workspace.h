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

class GrowingBuffer {
 public:
  // At least `bytes`, on a cache line boundary, uninitialised. Valid until the next call.
  void* at_least(int64_t bytes) {
    if (bytes > size_bytes_) {
      size_bytes_ = 0;  // what holds should the allocation fail
      buffer_.emplace(bytes);
      size_bytes_ = bytes;
    }
    return buffer_.has_value() ? buffer_->data() : nullptr;
  }

 private:
  std::optional<Scratch<char>> buffer_;
  int64_t size_bytes_ = 0;
};

// The thread's own; valid until its next call.
inline void* gemm_workspace(int64_t bytes) {
  thread_local GrowingBuffer buffer;
  return buffer.at_least(bytes);
}

}  // namespace transformer_engine::cpu
