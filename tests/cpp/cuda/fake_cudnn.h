// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for cuDNN's backend: it takes descriptors as cuDNN does (attributes before, use after
// they are finalized), and runs the operations of an attention graph in FP64 on the host
// (fake_cudnn_graph.h). It records how often it is asked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace transformer_engine::testing {

struct CudnnCalls {
  int heuristics = 0;  // queries of configurations
  int plans = 0;       // plans finalized
  int executions = 0;
  int64_t engine = 0;          // of the last plan; 0 is what the heuristics answer
  bool has_no_engine = false;  // set by a test: plans are refused
};

// While it lives, the CUDA backend calls the stand-in, which says that it is of this version. All
// in a process stand for the same library.
class FakeCudnn {
 public:
  explicit FakeCudnn(size_t version = 91900);
  ~FakeCudnn();
  FakeCudnn(const FakeCudnn&) = delete;
  FakeCudnn& operator=(const FakeCudnn&) = delete;

  static CudnnCalls& calls();
};

}  // namespace transformer_engine::testing
