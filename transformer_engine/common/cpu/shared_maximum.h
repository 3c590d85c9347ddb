// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "numerics/bits.h"

namespace transformer_engine::cpu {

// Largest of the values that the threads report. Magnitudes are ordered as their bits are.
class SharedMaximum {
 public:
  void add(float value) {
    const uint32_t bits = numerics::bits_of_float(value);
    uint32_t current = bits_.load(std::memory_order_relaxed);
    while (current < bits && !bits_.compare_exchange_weak(current, bits)) {
    }
  }
  float value() const { return numerics::float_of_bits(bits_.load()); }

 private:
  std::atomic<uint32_t> bits_{0};
};

}  // namespace transformer_engine::cpu
