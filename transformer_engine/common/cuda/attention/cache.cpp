// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/cache.h"

#include <cstring>

#include "cuda/attention/rules.h"

namespace transformer_engine::cuda {

void PlanKey::add(float number) {
  int32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  add(int64_t{bits});
}

void PlanKey::add(const HeadsView& view) {
  add(view.batch_stride);
  add(view.head_stride);
  add(view.token_stride);
}

void PlanKey::add(const AttentionProblem& problem) {
  for (const int64_t number :
       {problem.batch, problem.heads, problem.groups, problem.queries, problem.keys,
        problem.size_qk, problem.size_v, static_cast<int64_t>(problem.dtype), problem.left,
        problem.right, int64_t{problem.is_bottom_right}, int64_t{problem.has_lengths},
        int64_t{problem.is_packed}, int64_t{problem.has_bias}, problem.bias_batch,
        problem.bias_heads, int64_t{problem.has_statistics}, int64_t{problem.is_deterministic}}) {
    add(number);
  }
  add(problem.scale);
  add(problem.dropout);
}

void PlanKey::add(const PlanOptions& options) {
  for (const int64_t number :
       {int64_t{options.is_backward}, int64_t{options.has_lengths},
        int64_t{options.has_wide_starts}, options.most_tokens_q, options.most_tokens_kv}) {
    add(number);
  }
}

const PlanOrReason& PlanCache::insert(const PlanKey& key, PlanOrReason made) {
  ++builds_;
  if (entries_.size() == kMostPlans) {
    places_.erase(entries_.back().key.bytes());
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(made)});
  places_.emplace(entries_.front().key.bytes(), entries_.begin());
  return entries_.front().made;
}

PlanCache& plans() {
  thread_local PlanCache* const cache = new PlanCache;
  return *cache;
}

size_t attention_plans_built() { return plans().builds(); }

}  // namespace transformer_engine::cuda
