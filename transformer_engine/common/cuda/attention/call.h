// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One call of a plan: its device memory, the numbers of its sequences, and what is cleared after
// it.
#pragma once

#include "cuda/attention/plan.h"

namespace transformer_engine::cuda {

void*& at(Pointers& pointers, Role role);

struct PlanCall {
  const char* op;
  const AttentionProblem& problem;
  const AttentionInputs& inputs;
  const StartsTable& starts;
  const PlanOptions& options;
};
// Adds to `pointers` those of the inputs and of the sequences, whose numbers it writes, and runs
// the plan; NotImplementedError where there is none.
void run_plan(const PlanCall& call, const PlanOrReason& made, Pointers& pointers,
              const Context& context);

// Whether vectors of 16 bytes can be read and written, elements having so many bytes.
bool is_aligned(const HeadsView& view, int64_t element_bytes);
inline constexpr char kMisaligned[] =
    "a tensor does not lie at multiples of 16 bytes, by its pointer or strides";

}  // namespace transformer_engine::cuda
