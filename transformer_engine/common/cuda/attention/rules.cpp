// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/rules.h"

#include <transformer_engine/error.h>

#include <string>

namespace transformer_engine::cuda {

namespace {

using Reason = std::string;  // empty: none

bool has_band(const AttentionProblem& problem) { return problem.left >= 0 || problem.right >= 0; }

// Aligned at the bottom right in a way that differs from the top left.
bool is_shifted(const AttentionProblem& problem) {
  return problem.is_bottom_right && has_band(problem) &&
         (problem.has_lengths || problem.queries != problem.keys);
}

Reason against_tensors(const AttentionProblem& problem) {
  if (problem.dtype != DType::kFloat16 && problem.dtype != DType::kBFloat16) {
    return concat("it takes float16 and bfloat16, not ", dtype_name(problem.dtype));
  }
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0 || problem.keys == 0 ||
      problem.size_qk == 0 || problem.size_v == 0 ||
      (problem.is_packed && (problem.tokens_q == 0 || problem.tokens_kv == 0))) {
    return "a tensor is empty";
  }
  if (problem.size_qk % 8 != 0 || problem.size_v % 8 != 0) {
    return concat("head sizes are ", problem.size_qk, " and ", problem.size_v,
                  "; it takes multiples of 8");
  }
  if (problem.has_statistics && problem.queries == 1 && problem.keys == 1) {
    return "its backward does not take one query with one key";
  }
  return {};
}

Reason against_head_sizes(const AttentionProblem& problem, const CudnnPlatform& platform) {
  const int capability = platform.compute_capability;
  const bool is_hopper = capability >= 90 && capability < 100;
  const bool is_blackwell = capability >= 100 && capability < 120;
  const bool is_mla = problem.size_qk == 192 && problem.size_v == 128;
  const bool is_large_forward =
      is_blackwell && !problem.has_statistics && platform.version >= 90900;
  const int64_t most = is_hopper || is_large_forward ? 256 : 128;
  if ((problem.size_qk <= most && problem.size_v <= most) ||
      (is_blackwell && is_mla && platform.version >= 91100)) {
    return {};
  }
  return concat("head sizes are ", problem.size_qk, " and ", problem.size_v, "; sm_", capability,
                " takes up to ", most);
}

Reason against_band(const AttentionProblem& problem, const CudnnPlatform& platform) {
  if (!problem.has_lengths && problem.queries > problem.keys &&
      (is_shifted(problem) || problem.left >= 0)) {
    return concat("a sliding window or bottom-right diagonal with ", problem.queries,
                  " queries and ", problem.keys, " keys; it takes no more queries than keys");
  }
  if (is_shifted(problem) && problem.right >= 0 && (problem.has_bias || problem.dropout > 0.0F)) {
    return "it has no bottom-right diagonal with a bias or with dropout";
  }
  const bool is_plain = problem.right >= 0 && !problem.has_bias && problem.dropout == 0.0F;
  if (problem.left >= 0 && !is_plain && platform.version < 91002) {
    return "before 9.10.2 it has no sliding window without a right side, or with a bias or dropout";
  }
  if (problem.left >= 0 && problem.right < 0 && problem.keys > 1024 && platform.version == 91400) {
    return "9.14.0 has a known fault in one-sided windows over more than 1024 keys";
  }
  return {};
}

Reason against_sequences(const AttentionProblem& problem, const CudnnPlatform& platform) {
  if (problem.has_lengths && problem.has_bias) {
    return "it has no bias for sequences with lengths";
  }
  if (problem.has_bias && problem.keys % 8 != 0) {
    return concat("a bias for ", problem.keys, " keys; it takes multiples of 8");
  }
  const int capability = platform.compute_capability;
  if (problem.is_packed && (capability < 90 || capability >= 120)) {
    return concat("packed sequences (thd) need sm_90 to sm_110, this is sm_", capability);
  }
  return {};
}

Reason against_determinism(const AttentionProblem& problem, const CudnnPlatform& platform) {
  if (!problem.is_deterministic || !problem.has_statistics) {
    return {};
  }
  const int capability = platform.compute_capability;
  if (capability < 90) {
    return concat("its backward is not deterministic on sm_", capability);
  }
  if (problem.has_bias) {
    return "its backward is not deterministic with a bias";
  }
  if (capability >= 100 && (platform.version < 91801 || problem.dropout > 0.0F)) {
    return "its backward is not deterministic on this device with dropout, or before 9.18.1";
  }
  return {};
}

}  // namespace

const char* reason_against(const AttentionProblem& problem, const CudnnPlatform& platform) {
  thread_local Reason reason;
  if (platform.compute_capability < 80) {
    reason = concat("it needs sm_80 or later, this is sm_", platform.compute_capability);
    return reason.c_str();
  }
  reason = against_tensors(problem);
  for (const auto& rule :
       {against_head_sizes, against_band, against_sequences, against_determinism}) {
    if (reason.empty()) {
      reason = rule(problem, platform);
    }
  }
  return reason.empty() ? nullptr : reason.c_str();
}

}  // namespace transformer_engine::cuda
