// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// D[m, n] for few rows of A and B stored [n, k]: dot products of the rows of A and B.
//
// Bound by reading B: n * k elements, once from memory, straight from where they are; FP8 is
// decoded in registers. A few rows of B go side by side, so that one load of A serves them all and
// enough sums are in flight (4 rows of B x 4 of A; 2 x 4 where there are 16 registers). More rows
// of A go group by group over the same rows of B, which by then are in L1 or L2. A is small
// (k * m words) and is brought into the form of the multiply-add beforehand.
#include "cpu/simd/gemm_finish.h"
#include "cpu/simd/gemm_pack.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kMaxRows = 16;
constexpr int kGroupRows = 4;  // of A, whose sums are in registers together
constexpr int kRowsSideBySide = TE_ISA_LEVEL >= 2 ? 4 : 2;
// Columns of D collected before they are finished together.
constexpr int64_t kColumnsAtOnce = 64;
// Elements of each row of B to prefetch ahead, at least.
constexpr int64_t kMinAhead = 1024;
static_assert(kColumnsAtOnce % kRowsSideBySide == 0 && kColumnsAtOnce % kWidth == 0);

template <typename T>
using Reader = RowReader<T, kFitsPairs<T>>;

template <typename T>
constexpr int64_t kWordsPerChunk = Reader<T>::kVectors * kWidth;

template <typename T>
constexpr int64_t chunks_of(int64_t k) {
  return (k + Reader<T>::kElements - 1) / Reader<T>::kElements;
}

template <typename T>
TE_INLINE void read_last(const Reader<T>& reader, const T* p, int64_t count,
                         Vf (&words)[Reader<T>::kVectors]) {
  T copy[Reader<T>::kElements] = {};
  copy_elements(copy, p, count);
  reader.read(copy, words);
}

template <typename T>
void prepare_as(const GemmSkinnyPrepareArgs& args) {
  const Reader<T> reader{};
  float* out = static_cast<float*>(args.prepared);
  for (int64_t row = 0; row < args.m; ++row) {
    const T* p = static_cast<const T*>(args.source) + row * args.k;
    for (int64_t k = 0; k < args.k; k += Reader<T>::kElements) {
      Vf words[Reader<T>::kVectors];
      if (k + Reader<T>::kElements <= args.k) {
        reader.read(p + k, words);
      } else {
        read_last<T>(reader, p + k, args.k - k, words);
      }
      for (int i = 0; i < Reader<T>::kVectors; ++i) {
        store(out, words[i]);
        out += kWidth;
      }
    }
  }
}

// The sums of kRows rows of B with M rows of A.
template <typename T, int M, int kRows>
struct Sums {
  static constexpr int kVectors = Reader<T>::kVectors;
  // Few sums get one chain of additions per register of the chunk, to hide the latency.
  static constexpr int kChains = M * kRows <= 8 ? kVectors : 1;
  Vf sum[kRows][M][kChains];

  TE_INLINE void clear() {
#pragma GCC unroll 4
    for (auto& of_row : sum) {
#pragma GCC unroll 4
      for (auto& chains : of_row) {
#pragma GCC unroll 2
        for (auto& chain : chains) {
          chain = zero();
        }
      }
    }
  }

  TE_INLINE void add(const float* a, int64_t a_stride, const Vf (&words)[kRows][kVectors]) {
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const Vf word = load(a + m * a_stride + i * kWidth);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          Vf& s = sum[row][m][i % kChains];
          s = multiply_add_words<kFitsPairs<T>>(word, words[row][i], s);
        }
      }
    }
  }

  TE_INLINE void reduce(float* out) const {
    for (int row = 0; row < kRows; ++row) {
      for (int m = 0; m < M; ++m) {
        Vf total = sum[row][m][0];
        for (int chain = 1; chain < kChains; ++chain) {
          total += sum[row][m][chain];
        }
        out[m * kColumnsAtOnce + row] = reduce_add(total);
      }
    }
  }
};

// out[m * kColumnsAtOnce + row] = dot of row `row` of B (at b) and row m of a group of prepared A.
template <typename T, int M, int kRows>
__attribute__((noinline)) void multiply_group(const float* a, const T* b, int64_t k, float* out) {
  constexpr int kVectors = Reader<T>::kVectors;
  const Reader<T> reader{};
  const int64_t a_stride = chunks_of<T>(k) * kWordsPerChunk<T>;
  Sums<T, M, kRows> sums;
  sums.clear();
  Vf words[kRows][kVectors];
  // The same place in the rows that come next, or some after that where rows are short. The
  // processor's own prefetcher stops at pages, which a row of FP8 hardly fills.
  const int64_t rows_ahead = k > 0 && k < kMinAhead ? kMinAhead / k : 1;
  const int64_t ahead = kRowsSideBySide * rows_ahead * k;
  int64_t i = 0;
  for (; i + Reader<T>::kElements <= k; i += Reader<T>::kElements) {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      __builtin_prefetch(b + row * k + i + ahead);
      reader.read(b + row * k + i, words[row]);
    }
    sums.add(a, a_stride, words);
    a += kWordsPerChunk<T>;
  }
  if (i < k) {
    for (int row = 0; row < kRows; ++row) {
      read_last<T>(reader, b + row * k + i, k - i, words[row]);
    }
    sums.add(a, a_stride, words);
  }
  sums.reduce(out);
}

template <typename T, int kRows>
TE_INLINE void multiply_group_of(int64_t m, const float* a, const T* b, int64_t k, float* out) {
  switch (m) {
    case 1:
      return multiply_group<T, 1, kRows>(a, b, k, out);
    case 2:
      return multiply_group<T, 2, kRows>(a, b, k, out);
    case 3:
      return multiply_group<T, 3, kRows>(a, b, k, out);
    default:
      return multiply_group<T, 4, kRows>(a, b, k, out);
  }
}

// kRows rows of B times all rows of A, in groups as equal as can be.
template <typename T, int kRows>
void multiply_rows(const GemmSkinnyArgs& args, const T* b, float* out) {
  const int64_t a_stride = chunks_of<T>(args.k) * kWordsPerChunk<T>;
  const int64_t groups = (args.m + kGroupRows - 1) / kGroupRows;
  const int64_t group_rows = (args.m + groups - 1) / groups;
  for (int64_t m = 0; m < args.m; m += group_rows) {
    const int64_t count = args.m - m < group_rows ? args.m - m : group_rows;
    multiply_group_of<T, kRows>(count, static_cast<const float*>(args.a) + m * a_stride, b, args.k,
                                out + m * kColumnsAtOnce);
  }
}

template <typename T>
void multiply_as(const GemmSkinnyArgs& args) {
  alignas(64) float sums[kMaxRows * kColumnsAtOnce];
  for (int64_t first = args.row_begin; first < args.row_end; first += kColumnsAtOnce) {
    const int64_t left = args.row_end - first;
    const int64_t count = left < kColumnsAtOnce ? left : kColumnsAtOnce;
    const T* b = static_cast<const T*>(args.b) + first * args.k;
    int64_t row = 0;
    for (; row + kRowsSideBySide <= count; row += kRowsSideBySide) {
      multiply_rows<T, kRowsSideBySide>(args, b + row * args.k, sums + row);
    }
    for (; row < count; ++row) {
      multiply_rows<T, 1>(args, b + row * args.k, sums + row);
    }
    finish_piece(finish_at(args.finish, 0, first), sums, kColumnsAtOnce, args.m, count);
  }
}

int64_t prepared_bytes(const GemmSkinnyPrepareArgs& args) {
  return with_type(args.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return args.m * chunks_of<T>(args.k) * kWordsPerChunk<T> * static_cast<int64_t>(sizeof(float));
  });
}

void prepare(const GemmSkinnyPrepareArgs& args) {
  with_type(args.dtype, [&](auto tag) { prepare_as<typename decltype(tag)::Type>(args); });
}

void multiply(const GemmSkinnyArgs& args) {
  with_type(args.b_dtype, [&](auto tag) { multiply_as<typename decltype(tag)::Type>(args); });
}

}  // namespace

extern const GemmSkinnyKernels gemm_skinny_kernels = {kMaxRows, prepared_bytes, prepare, multiply};

}  // namespace transformer_engine::cpu::TE_ISA
