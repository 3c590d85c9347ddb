// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cuda_emulator {

// While it lives, every stream counts as capturing a graph: what a capture refuses is refused
// (cudaMalloc, waiting for a stream or the device). Kernels run at once.
class CaptureScope {
 public:
  CaptureScope();
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
};

}  // namespace cuda_emulator
