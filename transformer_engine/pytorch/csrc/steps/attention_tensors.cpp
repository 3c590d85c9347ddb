// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/attention_tensors.h"

#include <transformer_engine/error.h>

namespace transformer_engine::pytorch {

namespace {

constexpr int64_t kAlignmentBytes = 16;

}  // namespace

HeadsView heads_view(const at::Tensor& x, AttentionFormat format) {
  HeadsView view;
  view.data = x.data_ptr();
  if (format == AttentionFormat::kThd) {
    view.token_stride = x.stride(0);
    view.head_stride = x.stride(1);
    return view;
  }
  const int batch = format == AttentionFormat::kSbhd ? 1 : 0;
  view.batch_stride = x.stride(batch);
  view.token_stride = x.stride(1 - batch);
  view.head_stride = x.stride(2);
  return view;
}

HeadsView future_view(const at::Tensor& x, AttentionFormat format) {
  const int64_t row = x.size(-2) * x.size(-1);
  HeadsView view;
  view.head_stride = x.size(-1);
  view.token_stride = format == AttentionFormat::kSbhd ? x.size(1) * row : row;
  view.batch_stride = format == AttentionFormat::kSbhd   ? row
                      : format == AttentionFormat::kBshd ? x.size(1) * row
                                                         : 0;
  return view;
}

at::Tensor readable(const at::Tensor& x) {
  const int64_t element = x.element_size();
  bool is_readable = !x.is_neg() && x.stride(-1) == 1 &&
                     reinterpret_cast<uintptr_t>(x.data_ptr()) % kAlignmentBytes == 0;
  for (int64_t i = 0; i < x.dim() - 1; ++i) {
    is_readable = is_readable && x.stride(i) * element % kAlignmentBytes == 0;
  }
  return is_readable ? x : x.resolve_neg().clone(at::MemoryFormat::Contiguous);
}

void set_sizes(AttentionProblem& problem, AttentionFormat format, const at::Tensor& q,
               const at::Tensor& k, const at::Tensor& v) {
  problem.heads = q.size(-2);
  problem.groups = k.size(-2);
  problem.size_qk = q.size(-1);
  problem.size_v = v.size(-1);
  if (format == AttentionFormat::kThd) {
    problem.tokens_q = q.size(0);
    problem.tokens_kv = k.size(0);
    return;
  }
  const int batch = format == AttentionFormat::kSbhd ? 1 : 0;
  problem.batch = q.size(batch);
  problem.queries = q.size(1 - batch);
  problem.keys = k.size(1 - batch);
}

void check_cumulative(const std::string& label, const at::Tensor& cu, int64_t batch,
                      const at::Tensor& q) {
  if (cu.defined()) {
    TE_CHECK(cu.scalar_type() == at::ScalarType::Int && cu.dim() == 1 && cu.numel() == batch + 1 &&
                 cu.is_contiguous() && cu.device() == q.device(),
             label, ": lengths have dtype ", at::toString(cu.scalar_type()), ", shape ", cu.sizes(),
             " and device ", cu.device().str(), "; a contiguous int32 tensor of ", batch + 1,
             " elements on ", q.device().str(), " is required.");
  }
}

const int32_t* lengths_data(const at::Tensor& cu) {
  return cu.defined() ? static_cast<const int32_t*>(cu.data_ptr()) : nullptr;
}

}  // namespace transformer_engine::pytorch
