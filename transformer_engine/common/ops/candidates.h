// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The candidate list of an op that has one body per device and the reference.
#pragma once

#include "core/candidate.h"
#include "cuda/entry_points.h"

namespace transformer_engine {

template <typename Args>
using Run = void (*)(const Args&, const Context&);

template <typename Args, Run<Args> kCpu, Run<Args> kReference>
constexpr Candidate<Args> kCandidates[] = {
    {"cpu", &refuse_unless_cpu<Args>, kCpu},
    cuda::kCandidate<Args>,
    {"reference", &refuse_unless_cpu<Args>, kReference},
};

}  // namespace transformer_engine
