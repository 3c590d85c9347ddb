// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/attention.h>

#include "cuda/attention_support.h"
#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

#if defined(TE_CUDA_WITHOUT_CUDNN)
namespace {
constexpr char kReason[] =
    "this build has no fused attention: cuDNN's headers were not found. Run `python "
    "build_tools/cudnn_headers.py --fetch` and build again";
}

template <>
const char* EntryPoint<AttentionForwardArgs>::refusal(const AttentionForwardArgs&, const Context&) {
  return kReason;
}
template <>
const char* EntryPoint<AttentionBackwardArgs>::refusal(const AttentionBackwardArgs&,
                                                       const Context&) {
  return kReason;
}
template <>
const char* EntryPoint<AttentionFp8ForwardArgs>::refusal(const AttentionFp8ForwardArgs&,
                                                         const Context&) {
  return kReason;
}
template <>
const char* EntryPoint<AttentionFp8BackwardArgs>::refusal(const AttentionFp8BackwardArgs&,
                                                          const Context&) {
  return kReason;
}
void append_attention_status(std::vector<BackendStatus>& statuses) {
  statuses.push_back({"cuDNN", false, "this build was made without cuDNN's headers",
                      "fused attention on CUDA tensors (torch's is used)",
                      "python build_tools/cudnn_headers.py --fetch, and build again"});
}
#else
namespace {
constexpr const char* kReason = kNoCuda;
}
#endif

const char* fused_attention_refusal(const AttentionProblem&, const Context&) { return kReason; }
const char* fused_attention_backward_refusal(const AttentionBackwardArgs&, const Context&) {
  return kReason;
}
const char* fused_attention_fp8_refusal(const AttentionProblem&, const AttentionFp8Types&,
                                        const Context&) {
  return kReason;
}
const char* fused_attention_fp8_backward_refusal(const AttentionFp8BackwardArgs&, const Context&) {
  return kReason;
}

template struct EntryPoint<AttentionForwardArgs>;
template struct EntryPoint<AttentionBackwardArgs>;
template struct EntryPoint<AttentionFp8ForwardArgs>;
template struct EntryPoint<AttentionFp8BackwardArgs>;

}  // namespace transformer_engine::cuda
