// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Products of one group, of any shapes and formats, as the experts of a mixture of experts compute
// them. Each is what gemm() computes; they do not depend on each other and may run at once. On CUDA
// they are spread over a few streams, between what came before and what comes after on the
// context's stream.
#pragma once

#include <transformer_engine/gemm.h>

#include <span>

namespace transformer_engine {

// The outputs of a product (d, pre_epilogue) share no memory with what another reads or writes. All
// products are checked before the first one runs.
struct GroupedGemmArgs {
  std::span<const GemmArgs> products;
};
void grouped_gemm(const GroupedGemmArgs& args, const Context& context);

}  // namespace transformer_engine
