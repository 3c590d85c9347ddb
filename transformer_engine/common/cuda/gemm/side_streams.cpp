// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/side_streams.h"

#include <transformer_engine/error.h>

#include <algorithm>
#include <map>

namespace transformer_engine::cuda {

namespace {

void check(cudaError_t status, const char* what) {
  TE_CHECK_AS(RuntimeError, status == cudaSuccess, "grouped_gemm: ", what, " failed with \"",
              cudaGetErrorString(status),
              "\"; a working device is required. CUDA_LAUNCH_BLOCKING=1 names the call at fault.");
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

}  // namespace

// Of one thread: another one would record the events anew before this one has waited for them.
SideStreams::Lanes& SideStreams::lanes_of(int device) {
  static thread_local std::map<int, Lanes> of_thread;
  const auto [entry, is_new] = of_thread.try_emplace(device);
  Lanes& lanes = entry->second;
  if (is_new) {
    lanes.start = make_event();
    for (Lane& lane : lanes.lanes) {
      check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking),
            "cudaStreamCreateWithFlags");
      lane.done = make_event();
    }
  }
  return lanes;
}

SideStreams::SideStreams(int device, cudaStream_t stream, int count)
    : lanes_(lanes_of(device)), stream_(stream), count_(std::min(count, kCount)) {
  check(cudaEventRecord(lanes_.start, stream_), "cudaEventRecord");
  for (int i = 0; i < count_; ++i) {
    check(cudaStreamWaitEvent(lanes_.lanes[i].stream, lanes_.start, 0), "cudaStreamWaitEvent");
  }
}

SideStreams::~SideStreams() {
  if (!is_joined_) {
    for (int i = 0; i < count_; ++i) {
      cudaEventRecord(lanes_.lanes[i].done, lanes_.lanes[i].stream);
      cudaStreamWaitEvent(stream_, lanes_.lanes[i].done, 0);
    }
  }
}

cudaStream_t SideStreams::stream(int index) const {
  return index == 0 ? stream_ : lanes_.lanes[index - 1].stream;
}

void SideStreams::join() {
  is_joined_ = true;
  for (int i = 0; i < count_; ++i) {
    check(cudaEventRecord(lanes_.lanes[i].done, lanes_.lanes[i].stream), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_, lanes_.lanes[i].done, 0), "cudaStreamWaitEvent");
  }
}

}  // namespace transformer_engine::cuda
