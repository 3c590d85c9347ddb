// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <transformer_engine/attention.h>
#include <transformer_engine/report.h>

#include <vector>

namespace transformer_engine::cuda {

// attention_refusal() and attention_backward_refusal() of device memory. Defined in cuda/, or in
// no_cuda/ for a build without CUDA or without cuDNN's headers.
const char* fused_attention_refusal(const AttentionProblem& problem, const Context& context);
const char* fused_attention_backward_refusal(const AttentionBackwardArgs& args,
                                             const Context& context);

// Likewise those of FP8.
const char* fused_attention_fp8_refusal(const AttentionProblem& problem,
                                        const AttentionFp8Types& types, const Context& context);
const char* fused_attention_fp8_backward_refusal(const AttentionFp8BackwardArgs& args,
                                                 const Context& context);

// Adds whether there is a cuDNN, for transformer_engine.report().
void append_attention_status(std::vector<BackendStatus>& statuses);

}  // namespace transformer_engine::cuda
