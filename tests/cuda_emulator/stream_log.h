// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Streams of the emulator run their work at once, so a missing event does not show. The log says
// what was asked for, for tests of the order between streams.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace cuda_emulator {

struct StreamStep {
  enum class Act { kWork, kRecord, kWait };
  Act act;
  cudaStream_t stream;
  cudaEvent_t event = nullptr;  // of kRecord and kWait
};

// While it lives, kernels, products, events recorded and waited for are listed. One at a time.
class StreamLog {
 public:
  StreamLog();
  ~StreamLog();
  StreamLog(const StreamLog&) = delete;
  StreamLog& operator=(const StreamLog&) = delete;

  const std::vector<StreamStep>& steps() const;
};
void log_stream(StreamStep step);

}  // namespace cuda_emulator
