// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend as ops/ sees it: for each op's argument struct, whether it takes a problem and
// how to run it. Defined in cuda/, or in no_cuda/ for a build without CUDA.
#pragma once

#include <transformer_engine/report.h>

#include <vector>

#include "core/candidate.h"

namespace transformer_engine::cuda {

template <typename Args>
struct EntryPoint {
  static const char* refusal(const Args& args, const Context& context);
  static void run(const Args& args, const Context& context);
};

template <typename Args>
inline constexpr Candidate<Args> kCandidate = {"cuda", &EntryPoint<Args>::refusal,
                                               &EntryPoint<Args>::run};

// Adds what this build and machine have of CUDA, for transformer_engine.report().
void append_statuses(std::vector<BackendStatus>& statuses);

}  // namespace transformer_engine::cuda
