// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scratch memory of the CPU GEMMs: one buffer per thread, kept from call to call, so that a small
// problem pays for no allocation. The callers' block sizes bound it to a few MiB.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace transformer_engine::cpu {

class GemmWorkspace {
 public:
  // At least `bytes`, aligned to a cache line, uninitialised. Valid until the thread's next call.
  static void* get(int64_t bytes) {
    thread_local GemmWorkspace workspace;
    if (bytes > workspace.size_bytes_) {
      workspace.buffer_.reset();
      workspace.size_bytes_ = 0;
      workspace.buffer_.reset(static_cast<char*>(
          ::operator new(static_cast<size_t>(bytes), std::align_val_t{kAlignment})));
      workspace.size_bytes_ = bytes;
    }
    return workspace.buffer_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<char, Free> buffer_;
  int64_t size_bytes_ = 0;
};

}  // namespace transformer_engine::cpu
