// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/error.h>

#include <string>

#include "cuda/attention/rules.h"

namespace transformer_engine::cuda {

namespace {

using Reason = std::string;  // empty: none

bool is_blackwell(const CudnnPlatform& platform) {
  return platform.compute_capability >= 100 && platform.compute_capability < 120;
}

Reason against_platform(const CudnnPlatform& platform) {
  const int capability = platform.compute_capability;
  if (capability < 90 || capability >= 120) {
    return concat("FP8 attention needs sm_90 to sm_110, this is sm_", capability);
  }
  return {};
}

Reason against_features(const AttentionProblem& problem) {
  if (problem.is_packed) {
    return "FP8 attention has no packed sequences (thd)";
  }
  if (problem.has_bias) {
    return "FP8 attention has no bias";
  }
  if (problem.dropout > 0.0F) {
    return "FP8 attention has no dropout";
  }
  return {};
}

Reason against_sizes(const AttentionProblem& problem, const CudnnPlatform& platform) {
  const int64_t qk = problem.size_qk;
  const int64_t v = problem.size_v;
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0 || problem.keys == 0 ||
      qk == 0 || v == 0) {
    return "a tensor is empty";
  }
  if (problem.has_statistics && problem.queries == 1 && problem.keys == 1) {
    return "its backward does not take one query with one key";
  }
  const Reason sizes = concat("head sizes are ", qk, " and ", v, "; FP8 attention takes ");
  if (qk % 16 != 0 || v % 16 != 0) {
    return concat(sizes, "multiples of 16");
  }
  if (is_blackwell(platform)) {
    const bool is_mla = qk == 192 && v == 128 && platform.version >= 92100;
    return (qk <= 128 && v <= 128) || is_mla
               ? Reason()
               : concat(sizes, "up to 128 on this device, or 192 and 128 from cuDNN 9.21 on");
  }
  if (problem.has_statistics) {
    return qk == 128 && v == 128 ? Reason()
                                 : concat(sizes, "128 alone on sm_90 where a backward follows");
  }
  return qk == v && qk <= 256 ? Reason() : concat(sizes, "equal ones up to 256 on sm_90");
}

Reason against_band(const AttentionProblem& problem, const CudnnPlatform& platform) {
  if (problem.left >= 0 || problem.right > 0) {
    return "FP8 attention has no sliding window";
  }
  const bool is_shifted = problem.is_bottom_right && problem.right == 0 &&
                          (problem.has_lengths || problem.queries != problem.keys);
  if (!is_shifted) {
    return {};
  }
  if (problem.has_statistics) {  // the graph of it would have no mask at all
    return "cudnn-frontend leaves a bottom-right diagonal out of its FP8 backward";
  }
  if (!is_blackwell(platform) || platform.version < 92100) {
    return "FP8 attention has a bottom-right diagonal from sm_100 and cuDNN 9.21 on";
  }
  if (problem.queries % 64 != 0 || problem.keys % 64 != 0) {
    return concat("a bottom-right diagonal with ", problem.queries, " queries and ", problem.keys,
                  " keys; FP8 attention takes multiples of 64");
  }
  if (problem.queries > problem.keys) {
    return concat("a bottom-right diagonal with ", problem.queries, " queries and ", problem.keys,
                  " keys; it takes no more queries than keys");
  }
  return {};
}

Reason against_types(const AttentionProblem& problem, const AttentionFp8Types& types,
                     const CudnnPlatform& platform) {
  const bool takes_16_bits = is_blackwell(platform) && platform.version >= 91300;
  if (!is_fp8(types.o) && !takes_16_bits) {
    return concat("O of FP8 attention is ", dtype_name(types.o),
                  " from sm_100 and cuDNN 9.13 on, before that FP8");
  }
  if (!problem.has_statistics) {
    return {};
  }
  if (!is_fp8(types.grads) && !takes_16_bits) {
    return concat("gradients of FP8 attention are ", dtype_name(types.grads),
                  " from sm_100 and cuDNN 9.13 on, before that FP8");
  }
  if (!is_fp8(types.saved_o) && !(is_blackwell(platform) && platform.version >= 91400)) {
    return concat("the backward of FP8 attention takes O in ", dtype_name(types.saved_o),
                  " from sm_100 and cuDNN 9.14 on, before that FP8");
  }
  return {};
}

Reason against_determinism(const AttentionProblem& problem, const CudnnPlatform& platform) {
  if (!problem.is_deterministic || !problem.has_statistics) {
    return {};
  }
  const int capability = platform.compute_capability;
  // cudnn-frontend passes the wish on to these devices alone.
  if (capability < 100 || capability >= 110 || platform.version < 91900) {
    return "the backward of FP8 attention is deterministic on sm_100 to sm_103 with cuDNN 9.19 or "
           "later alone";
  }
  return {};
}

}  // namespace

const char* reason_against_fp8(const AttentionProblem& problem, const AttentionFp8Types& types,
                               const CudnnPlatform& platform) {
  thread_local Reason reason;
  reason = against_platform(platform);
  if (reason.empty()) {
    reason = against_features(problem);
  }
  for (const auto& rule : {against_sizes, against_band, against_determinism}) {
    if (reason.empty()) {
      reason = rule(problem, platform);
    }
  }
  if (reason.empty()) {
    reason = against_types(problem, types, platform);
  }
  return reason.empty() ? nullptr : reason.c_str();
}

}  // namespace transformer_engine::cuda
