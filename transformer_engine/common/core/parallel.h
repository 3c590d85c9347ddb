// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splitting CPU work over threads. The bodies run in OpenMP's pool, which a framework in the same
// process (torch) shares.
#pragma once

#include <cstdint>

namespace transformer_engine {

// Calls body(begin, end, thread) on disjoint chunks of [0, count); thread < num_threads. Chunks
// hold a multiple of `grain` indices (but the last); fewer threads are used when there are fewer
// chunks. Nested calls and one chunk run inline.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, int num_threads, const Body& body) {
  if (count <= 0) {
    return;
  }
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t threads = num_threads < grains ? num_threads : grains;
  if (threads <= 1) {
    body(int64_t{0}, count, 0);
    return;
  }
  const int64_t chunk = (grains + threads - 1) / threads * grain;
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(static, 1)
  for (int64_t thread = 0; thread < threads; ++thread) {
    const int64_t begin = thread * chunk;
    const int64_t end = begin + chunk < count ? begin + chunk : count;
    if (begin < end) {
      body(begin, end, static_cast<int>(thread));
    }
  }
}

}  // namespace transformer_engine
