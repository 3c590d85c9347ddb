// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What cuDNN wants to know of sequences, and what it leaves undefined outside them.
#pragma once

#include <transformer_engine/attention.h>

#include "cuda/attention/plan.h"

namespace transformer_engine::cuda {

// Where the lengths and starts of one call lie. Those of keys likewise.
struct SequenceNumbers {
  int32_t* lengths_q = nullptr;             // [batch]
  int32_t* lengths_kv = nullptr;            // [batch]
  std::array<void*, kMostStarts> starts{};  // [batch + 1] each, int32 or int64
};

// Writes them: lengths from the cumulative ones, cut to what the problem says is the longest, or
// all of it without lengths; starts in elements.
void write_sequence_numbers(const AttentionProblem& problem, const AttentionSequences& sequences,
                            const StartsTable& starts, bool has_wide_starts,
                            const SequenceNumbers& numbers, const Context& context);

// Sets to 0 what a tensor of 2-byte elements holds for tokens that belong to no sequence and, for
// queries, for those that see no key. Rows are whole vectors of 16 bytes.
struct ClearTarget {
  HeadsView view;
  bool is_query = true;
  int64_t heads = 0;
  int64_t size = 0;
};
void clear_outside_sequences(const AttentionProblem& problem, const AttentionSequences& sequences,
                             const ClearTarget& target, const Context& context);

}  // namespace transformer_engine::cuda
