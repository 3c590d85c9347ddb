// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace transformer_engine {

// Working memory of one call: `count` uninitialised elements on a cache line boundary.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(count > 0 ? static_cast<T*>(::operator new(static_cast<size_t>(count) * sizeof(T),
                                                         std::align_val_t{kAlignmentBytes}))
                        : nullptr) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t{kAlignmentBytes}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() { return data_; }

 private:
  static constexpr size_t kAlignmentBytes = 64;
  T* data_;
};

}  // namespace transformer_engine
