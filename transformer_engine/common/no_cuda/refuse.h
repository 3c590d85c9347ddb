// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// CUDA entry points of a build without CUDA: each refuses. One file per op family instantiates
// them.
#pragma once

#include <transformer_engine/error.h>

#include "cuda/entry_points.h"

namespace transformer_engine::cuda {

inline constexpr char kNoCuda[] = "this build has no CUDA backend";

template <typename Args>
const char* EntryPoint<Args>::refusal(const Args&, const Context&) {
  return kNoCuda;
}

template <typename Args>
void EntryPoint<Args>::run(const Args&, const Context&) {
  throw NotImplementedError(kNoCuda);
}

}  // namespace transformer_engine::cuda
