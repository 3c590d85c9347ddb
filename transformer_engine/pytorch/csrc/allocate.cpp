// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "allocate.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>

namespace transformer_engine::pytorch {

namespace {

constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;  // x86-64 and AArch64 with 4 KiB pages
// Below this the block may come from the heap, whose pages are there: nothing to gain.
constexpr size_t kWorthAdvising = size_t{8} << 20;

// Advice for the whole huge pages inside the block: nothing outside it is touched. It may fail
// (no support, switched off): then pages are small, as without it.
void advise_huge_pages(void* data, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t last = (begin + bytes) / kHugePageBytes * kHugePageBytes;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace

at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like) {
  if (!like.is_cpu()) {
    return at::empty(sizes, like.options().dtype(dtype).requires_grad(false));
  }
  // What torch.empty ends in, without the way through the dispatcher.
  at::Tensor tensor(at::detail::empty_cpu(sizes, dtype));
  if (tensor.nbytes() >= kWorthAdvising) {
    advise_huge_pages(tensor.data_ptr(), tensor.nbytes());
  }
  return tensor;
}

}  // namespace transformer_engine::pytorch
