// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Loops over the elements of a row in vectors: typed and untyped rows, and sums that do not depend
// on the width of a vector.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/simd/pack.h"

// A lambda that must become part of the loop around it.
#if defined(TE_SANITIZED)
#define TE_INLINE_LAMBDA
#else
#define TE_INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

// How many elements a body works on: a pack or a vector in full, or an int64_t of a vector.
struct PackLanes {};
struct AllLanes {};

template <typename T>
TE_INLINE Vf load(const T* p, AllLanes) {
  return load(p);
}
template <typename T>
TE_INLINE void store(T* p, Vf v, AllLanes) {
  store(p, v);
}

template <typename T>
TE_INLINE Pack load(const T* p, PackLanes) {
  return load_pack(p);
}
template <typename T>
TE_INLINE void store(T* p, Pack v, PackLanes) {
  store_pack(p, v);
}

// v with the lanes from `count` on set to 0.
TE_INLINE Vf keep(Vf v, AllLanes) { return v; }
TE_INLINE Vf keep(Vf v, int64_t count) { return select(first_lanes(count), v, zero()); }

// Rows of one element type, and rows of a type known at run time: a branch per vector, for
// combinations of types too rare to be compiled each.
template <typename T>
struct RowsOf {
  T* data;

  TE_INLINE RowsOf(void* p, DType, int64_t offset) : data(static_cast<T*>(p) + offset) {}
  template <typename Count>
  TE_INLINE auto get(int64_t i, Count count) const {
    return load(static_cast<const T*>(data) + i, count);
  }
  template <typename V, typename Count>
  TE_INLINE void put(int64_t i, V v, Count count) const {
    store(data + i, v, count);
  }
};

struct AnyRows {
  void* data;
  DType dtype;
  int64_t offset;

  TE_INLINE AnyRows(void* p, DType type, int64_t start) : data(p), dtype(type), offset(start) {}
  template <typename Count>
  TE_INLINE auto get(int64_t i, Count count) const {
    const int64_t at = offset + i;
    return dtype == DType::kFloat32    ? load(static_cast<const float*>(data) + at, count)
           : dtype == DType::kBFloat16 ? load(static_cast<const Bf16*>(data) + at, count)
                                       : load(static_cast<const Fp16*>(data) + at, count);
  }
  template <typename V, typename Count>
  TE_INLINE void put(int64_t i, V v, Count count) const {
    const int64_t at = offset + i;
    if (dtype == DType::kFloat32) {
      store(static_cast<float*>(data) + at, v, count);
    } else if (dtype == DType::kBFloat16) {
      store(static_cast<Bf16*>(data) + at, v, count);
    } else {
      store(static_cast<Fp16*>(data) + at, v, count);
    }
  }
};

// Asks for the cache lines of elements [i, i + lanes of a pack] ahead of their use.
template <typename T>
TE_INLINE void prefetch(const RowsOf<T>& rows, int64_t i, PackLanes) {
  constexpr int kLineBytes = 64;
#pragma GCC unroll 4
  for (int byte = 0; byte < kPackWidth * static_cast<int>(sizeof(T)); byte += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(rows.data + i) + byte);
  }
}
template <typename Rows, typename Count>
TE_INLINE void prefetch(const Rows&, int64_t, Count) {}

// Reading through const void*.
template <typename Rows>
TE_INLINE Rows input_rows(const void* p, DType dtype, int64_t offset) {
  return Rows(const_cast<void*>(p), dtype, offset);
}

// Calls body(i, count) over [0, n) in packs (PackLanes), then vectors of up to kWidth lanes
// (int64_t): for elementwise work.
template <typename Body>
TE_INLINE void for_packs(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kPackWidth <= n; i += kPackWidth) {
    body(i, PackLanes{});
  }
  for (; i < n; i += kWidth) {
    body(i, n - i < kWidth ? n - i : int64_t{kWidth});
  }
}

// Calls body(i, part, count) for the vectors of [0, n), `part` counting the vectors within kLanes
// elements; count is AllLanes or, for the last vector, what is left. Both inner loops unroll, so
// that an array indexed by `part` stays in registers.
template <int kLanes, typename Body>
TE_INLINE void for_lanes(int64_t n, const Body& body) {
  constexpr int kParts = kLanes / kWidth;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 16
    for (int part = 0; part < kParts; ++part) {
      body(i + part * kWidth, part, AllLanes{});
    }
  }
#pragma GCC unroll 16
  for (int part = 0; part < kParts; ++part) {
    const int64_t left = n - i - part * kWidth;
    if (left >= kWidth) {
      body(i + part * kWidth, part, AllLanes{});
    } else if (left > 0) {
      body(i + part * kWidth, part, left);
    }
  }
}

// A sum over a row in kLanes independent lanes, whatever the width of a vector: element i goes to
// lane i modulo kLanes, lanes are added by halves. So every instruction set gives the same bits.
template <int kLanes>
struct LaneSum {
  static constexpr int kParts = kLanes / kWidth;
  Vf part[kParts];

  TE_INLINE LaneSum() {
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) {
      part[i] = zero();
    }
  }
  TE_INLINE float total() {
#pragma GCC unroll 16
    for (int half = kParts / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < half; ++i) {
        part[i] += part[i + half];
      }
    }
    return reduce_add(part[0]);
  }
};

// Enough lanes to hide the latency of an addition (4 cycles, 2 a cycle) in 64 / 16 chains.
constexpr int kRowLanes = 64;

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
