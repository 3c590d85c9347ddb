// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/attention.h>

#include "cuda/attention_support.h"
#include "no_cuda/refuse.h"

namespace transformer_engine::cuda {

#if defined(TE_CUDA_WITHOUT_CUDNN)
namespace {
constexpr char kNoHeaders[] =
    "this build has no fused attention: cuDNN's headers were not found. Run `python "
    "build_tools/cudnn_headers.py --fetch` and build again";
}

template <>
const char* EntryPoint<AttentionForwardArgs>::refusal(const AttentionForwardArgs&, const Context&) {
  return kNoHeaders;
}
template <>
const char* EntryPoint<AttentionBackwardArgs>::refusal(const AttentionBackwardArgs&,
                                                       const Context&) {
  return kNoHeaders;
}
const char* fused_attention_refusal(const AttentionProblem&, const Context&) { return kNoHeaders; }
const char* fused_attention_backward_refusal(const AttentionBackwardArgs&, const Context&) {
  return kNoHeaders;
}
void append_attention_status(std::vector<BackendStatus>& statuses) {
  statuses.push_back({"cuDNN", false, "this build was made without cuDNN's headers",
                      "fused attention on CUDA tensors (torch's is used)",
                      "python build_tools/cudnn_headers.py --fetch, and build again"});
}
#else
const char* fused_attention_refusal(const AttentionProblem&, const Context&) { return kNoCuda; }
const char* fused_attention_backward_refusal(const AttentionBackwardArgs&, const Context&) {
  return kNoCuda;
}
#endif

template struct EntryPoint<AttentionForwardArgs>;
template struct EntryPoint<AttentionBackwardArgs>;

}  // namespace transformer_engine::cuda
