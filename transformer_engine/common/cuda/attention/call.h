// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One call of a plan: its device memory, the numbers of its sequences, and what is cleared after
// it.
#pragma once

#include <initializer_list>

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

// Where a forward writes, and what a backward reads and writes, of any types.
template <typename Args>
void set_results(Pointers& pointers, const Args& args) {
  at(pointers, Role::kO) = args.o.data;
  at(pointers, Role::kStatistics) = args.problem.has_statistics ? args.statistics : nullptr;
}
template <typename Args>
void set_gradients(Pointers& pointers, const Args& args) {
  at(pointers, Role::kO) = args.o.data;
  at(pointers, Role::kGradO) = args.grad_o.data;
  at(pointers, Role::kStatistics) = const_cast<float*>(args.statistics);
  at(pointers, Role::kGradQ) = args.grad_q.data;
  at(pointers, Role::kGradK) = args.grad_k.data;
  at(pointers, Role::kGradV) = args.grad_v.data;
}

void set_to_zero(const char* op, void* data, int64_t bytes, const Context& context);

// Null where all lie in device memory, and vectors of 16 bytes can be read and written.
struct TypedView {
  const HeadsView& view;
  DType dtype;
};
const char* refusal_of_tensors(std::initializer_list<TypedView> tensors, const Context& context);

}  // namespace transformer_engine::cuda
