// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Device memory of one call, in the order of its stream: given back when the object dies, while the
// kernels that use it may still be waiting. From the framework's allocator where one is registered
// (framework.h), which costs no call of the driver in the steady state; else from the driver's
// pool.
#pragma once

#include <transformer_engine/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace transformer_engine::cuda {

class Workspace {
 public:
  // `op`: whose call this is, for the error message. No bytes: no memory, data() is null.
  Workspace(const char* op, int64_t bytes, const Context& context);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Of elements at a multiple of 256 bytes from the start.
  template <class T = void>
  T* data(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(data_ + offset_bytes);
  }

  // The next multiple of 256, at which another part of the workspace may begin.
  static constexpr int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  Context context_;
  char* data_ = nullptr;
};

// While it lives, workspaces of this thread that die are not given back; they are when it dies. For
// work on several streams: the framework's allocator orders memory by one of them, and would lend
// what a product on another still uses.
class HeldWorkspaces {
 public:
  HeldWorkspaces();
  ~HeldWorkspaces();
  HeldWorkspaces(const HeldWorkspaces&) = delete;
  HeldWorkspaces& operator=(const HeldWorkspaces&) = delete;

 private:
  friend class Workspace;
  HeldWorkspaces* before_;
  std::vector<std::pair<char*, Context>> pieces_;
};

}  // namespace transformer_engine::cuda
