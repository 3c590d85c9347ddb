// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Choosing an implementation: an op walks an ordered list of candidates, fastest first, reference
// last. A candidate first only answers whether it takes the problem; a refusal carries its reason.
// When none takes it, the error lists them all.
#pragma once

#include <transformer_engine/error.h>
#include <transformer_engine/types.h>

#include <cstddef>
#include <string>

namespace transformer_engine {

template <typename Args>
struct Candidate {
  const char* name;
  // Why this candidate cannot run the problem, or null when it can.
  const char* (*refusal)(const Args& args, const Context& context);
  void (*run)(const Args& args, const Context& context);
};

// The refusal of candidates that take every problem in host memory.
template <typename Args>
const char* refuse_unless_cpu(const Args&, const Context& context) {
  return context.device == DeviceType::kCPU ? nullptr : "the tensors are not in host memory";
}

template <typename Args, size_t N>
void run_first_candidate(const char* op, const Candidate<Args> (&candidates)[N], const Args& args,
                         const Context& context) {
  for (const auto& candidate : candidates) {
    if (candidate.refusal(args, context) == nullptr) {
      candidate.run(args, context);
      return;
    }
  }
  std::string reasons;
  for (const auto& candidate : candidates) {
    reasons += concat("\n  ", candidate.name, ": ", candidate.refusal(args, context));
  }
  throw NotImplementedError(concat(op, ": no implementation takes this problem:", reasons));
}

}  // namespace transformer_engine
