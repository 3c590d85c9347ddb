// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Stores around the caches, and asking for memory ahead of its use.
#pragma once

#include "cpu/simd/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int64_t kLineBytes = 64;

// Streaming stores are weakly ordered: other threads may read the result only after this.
template <bool kStream>
TE_INLINE void finish_stores() {
#if defined(__x86_64__)
  if constexpr (kStream) {
    _mm_sfence();
  }
#endif
}

// Streaming needs whole cache lines from aligned addresses.
TE_INLINE bool is_line_aligned(const void* pointer, int64_t stride_bytes, int64_t rows) {
  return reinterpret_cast<uintptr_t>(pointer) % kLineBytes == 0 &&
         (rows == 1 || stride_bytes % kLineBytes == 0);
}

// Hints for `bytes` of input that come `ahead` bytes after `in`; the address may be anywhere.
template <int kLocality>
TE_INLINE void prefetch_bytes(const void* in, int64_t ahead, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(in) + static_cast<uintptr_t>(ahead);
  for (int64_t offset = 0; offset < bytes; offset += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<uintptr_t>(offset)),
                       /*for writing=*/0, kLocality);
  }
}

// Rows of a tile lie far apart, too far for the processor to see a pattern: ask for the row that
// comes this many rows later, about a page of input ahead.
constexpr int64_t kPrefetchRows = 16;

template <typename T>
TE_INLINE void prefetch_later_row(const T* in, int64_t stride, int64_t count) {
  constexpr int64_t kElementBytes = sizeof(T);
  prefetch_bytes<3>(in, kPrefetchRows * stride * kElementBytes, count * kElementBytes);
}

// How far ahead to ask for rows of `cols` elements `stride` apart: 16 KiB where they follow one
// another, which spares a core the wait at the start of every page; else as many rows as have 32
// KiB, since more would push each other out of the first cache.
TE_INLINE int64_t prefetch_distance(int64_t stride, int64_t cols, int64_t element_bytes) {
  const int64_t rows = 32768 / (cols * element_bytes);
  return stride == cols ? 16384 : (rows < 1 ? 1 : rows < 8 ? rows : 8) * stride * element_bytes;
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
