// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One attention problem as a cuDNN execution plan: made once, then run with pointers.
#pragma once

#include <transformer_engine/attention.h>

#include <array>
#include <memory>
#include <string>

namespace transformer_engine::cuda {

// The tensors of a graph. Their number + 1 is the identifier that cuDNN knows them by.
enum class Role {
  kQ,
  kK,
  kV,
  kO,
  kStatistics,
  kGradO,
  kGradQ,
  kGradK,
  kGradV,
  kBias,
  kGradBias,
  kSeed,
  kOffset,
  kLengthsQ,
  kLengthsKV,
  // FP8: FP32 numbers
  kDescaleQ,
  kDescaleK,
  kDescaleV,
  kDescaleO,
  kDescaleGradO,
  kDescaleS,
  kDescaleDP,
  kScaleS,
  kScaleO,
  kScaleDP,
  kScaleGradQ,
  kScaleGradK,
  kScaleGradV,
  kAmaxS,
  kAmaxO,
  kAmaxGradQ,
  kAmaxGradK,
  kAmaxGradV,
  kAmaxDP,
  kStarts,  // and those after it: one per StartsOf
};
// Packed sequences: where they begin in a tensor, in elements.
struct StartsOf {
  bool is_query = true;
  int64_t token_stride = 0;
  bool operator==(const StartsOf&) const = default;
};
inline constexpr int kMostStarts = 9;
inline constexpr int kRoles = static_cast<int>(Role::kStarts) + kMostStarts;

using Pointers = std::array<void*, kRoles>;

// What the graph is built from besides the arguments.
struct PlanOptions {
  int compute_capability = 0;
  bool is_backward = false;
  bool has_lengths = false;      // lengths of sequences are given, even if all are full
  bool has_wide_starts = false;  // int64 instead of int32
  int64_t most_tokens_q = 0, most_tokens_kv = 0;  // packed: bounds of the tokens, for workspace
};

// The distinct starts of a packed problem, and which of them a tensor has.
class StartsTable {
 public:
  StartsTable() = default;  // of a problem that is not packed
  explicit StartsTable(const AttentionForwardArgs& args);
  explicit StartsTable(const AttentionBackwardArgs& args);
  int count() const { return count_; }
  const StartsOf& at(int i) const { return all_[static_cast<size_t>(i)]; }
  int find(bool is_query, int64_t token_stride) const;  // -1 where it has none: not packed

 private:
  void add(bool is_query, int64_t token_stride);
  void add_inputs(const AttentionProblem& problem, const AttentionInputs& inputs);
  std::array<StartsOf, kMostStarts> all_{};
  int count_ = 0;
};

class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  // On the current device and the stream.
  virtual void run(const Pointers& pointers, void* workspace, void* stream) = 0;
};

struct PlanOrReason {
  std::unique_ptr<AttentionPlan> plan;
  std::string reason;  // why there is no plan
};
// For the current device.
PlanOrReason make_plan(const AttentionForwardArgs& args, const PlanOptions& options);
PlanOrReason make_plan(const AttentionBackwardArgs& args, const PlanOptions& options);
PlanOrReason make_plan(const AttentionFp8ForwardArgs& args, const PlanOptions& options);
PlanOrReason make_plan(const AttentionFp8BackwardArgs& args, const PlanOptions& options);

}  // namespace transformer_engine::cuda
