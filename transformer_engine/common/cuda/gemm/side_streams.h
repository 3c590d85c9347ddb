// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Streams for work that may run at once, between what came before on a stream and what comes after.
#pragma once

#include <cuda_runtime_api.h>

namespace transformer_engine::cuda {

// The streams of this thread and device that run beside `stream` while it lives. They begin where
// `stream` is, and `stream` waits for them when join() is called, so that whoever orders memory by
// `stream` need not know of them. Can be captured by a graph.
class SideStreams {
 public:
  static constexpr int kCount = 3;  // with the caller's, four products at a time

  SideStreams(int device, cudaStream_t stream, int count);
  ~SideStreams();  // joins; an error is lost then
  SideStreams(const SideStreams&) = delete;
  SideStreams& operator=(const SideStreams&) = delete;

  // 0: the caller's; 1 ... count: beside it.
  cudaStream_t stream(int index) const;
  void join();

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  struct Lanes {
    cudaEvent_t start = nullptr;
    Lane lanes[kCount];
  };
  static Lanes& lanes_of(int device);

  Lanes& lanes_;
  cudaStream_t stream_;
  int count_;
  bool is_joined_ = false;
};

}  // namespace transformer_engine::cuda
