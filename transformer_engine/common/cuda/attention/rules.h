// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What cuDNN takes, as NVIDIA documents it: known before a plan is made, so that a problem can be
// refused with its reason. A plan may be refused all the same.
#pragma once

#include <transformer_engine/attention.h>

#include <cstddef>

namespace transformer_engine::cuda {

struct CudnnPlatform {
  int compute_capability = 0;
  size_t version = 0;  // of cuDNN: cudnn_version()
};

// Null, or a sentence that is valid until the thread's next call.
const char* reason_against(const AttentionProblem& problem, const CudnnPlatform& platform);
// Of FP8 attention; with has_statistics, of its backward, too.
const char* reason_against_fp8(const AttentionProblem& problem, const AttentionFp8Types& types,
                               const CudnnPlatform& platform);

// Plans made so far by this thread: for tests of the cache.
size_t attention_plans_built();

}  // namespace transformer_engine::cuda
