// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The plans of a thread, by everything that they depend on.
#pragma once

#include <array>
#include <list>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cuda/attention/plan.h"

namespace transformer_engine::cuda {

class PlanKey {
 public:
  void add(int64_t number) { numbers_.at(count_++) = number; }
  void add(float number);
  void add(const HeadsView& view);  // its strides
  void add(const AttentionProblem& problem);
  void add(const PlanOptions& options);
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(numbers_.data()), count_ * sizeof numbers_[0]};
  }

 private:
  std::array<int64_t, 64> numbers_{};
  size_t count_ = 0;
};

// The least recently used plan is dropped.
class PlanCache {
 public:
  // The plan of the key, or what `make()` gives.
  template <typename Make>
  const PlanOrReason& find(const PlanKey& key, const Make& make) {
    const auto known = places_.find(key.bytes());
    if (known != places_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      return known->second->made;
    }
    return insert(key, make());
  }
  size_t builds() const { return builds_; }

 private:
  static constexpr size_t kMostPlans = 256;
  struct Entry {
    PlanKey key;
    PlanOrReason made;
  };
  const PlanOrReason& insert(const PlanKey& key, PlanOrReason made);

  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
  size_t builds_ = 0;
};

// Of this thread. Never destroyed: when a thread ends with the process, cuDNN may have ended before
// it.
PlanCache& plans();

}  // namespace transformer_engine::cuda
