// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// D[m, n] for m up to 4 and B stored [n, k]: dot products of the rows of A and B.
//
// Bound by reading B: n * k elements, once, straight from where they are; FP8 is decoded in
// registers. A few rows of B go side by side, so that one load of A serves them all and enough sums
// are in flight (4 rows x m sums; 2 rows where there are 16 registers). A is small (k * m words)
// and is brought into the form of the multiply-add beforehand.
#include "cpu/simd/gemm_finish.h"
#include "cpu/simd/gemm_pack.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kMaxRows = 4;
constexpr int kRowsSideBySide = TE_ISA_LEVEL >= 2 ? 4 : 2;
// Columns of D collected before they are finished together.
constexpr int64_t kColumnsAtOnce = 64;
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
};

// out[m * kColumnsAtOnce + row] = dot of row `row` of B (at b) and row m of prepared A.
template <typename T, int M, int kRows>
void multiply_rows(const GemmSkinnyArgs& args, const T* b, float* out) {
  constexpr int kVectors = Reader<T>::kVectors;
  const Reader<T> reader{};
  const int64_t a_stride = chunks_of<T>(args.k) * kWordsPerChunk<T>;
  const float* a = static_cast<const float*>(args.a);
  Sums<T, M, kRows> sums;
#pragma GCC unroll 4
  for (auto& of_row : sums.sum) {
#pragma GCC unroll 4
    for (auto& chains : of_row) {
#pragma GCC unroll 2
      for (auto& chain : chains) {
        chain = zero();
      }
    }
  }
  Vf words[kRows][kVectors];
  int64_t k = 0;
  for (; k + Reader<T>::kElements <= args.k; k += Reader<T>::kElements) {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      reader.read(b + row * args.k + k, words[row]);
    }
    sums.add(a, a_stride, words);
    a += kWordsPerChunk<T>;
  }
  if (k < args.k) {
    for (int row = 0; row < kRows; ++row) {
      read_last<T>(reader, b + row * args.k + k, args.k - k, words[row]);
    }
    sums.add(a, a_stride, words);
  }
  for (int row = 0; row < kRows; ++row) {
    for (int m = 0; m < M; ++m) {
      Vf total = sums.sum[row][m][0];
      for (int chain = 1; chain < Sums<T, M, kRows>::kChains; ++chain) {
        total = total + sums.sum[row][m][chain];
      }
      out[m * kColumnsAtOnce + row] = reduce_add(total);
    }
  }
}

template <typename T, int M>
void multiply_as(const GemmSkinnyArgs& args) {
  alignas(64) float sums[kMaxRows * kColumnsAtOnce];
  for (int64_t first = args.row_begin; first < args.row_end; first += kColumnsAtOnce) {
    const int64_t left = args.row_end - first;
    const int64_t count = left < kColumnsAtOnce ? left : kColumnsAtOnce;
    const T* b = static_cast<const T*>(args.b) + first * args.k;
    int64_t row = 0;
    for (; row + kRowsSideBySide <= count; row += kRowsSideBySide) {
      multiply_rows<T, M, kRowsSideBySide>(args, b + row * args.k, sums + row);
    }
    for (; row < count; ++row) {
      multiply_rows<T, M, 1>(args, b + row * args.k, sums + row);
    }
    finish_piece(finish_at(args.finish, 0, first), sums, kColumnsAtOnce, M, count);
  }
}

template <typename T>
void multiply_of(const GemmSkinnyArgs& args) {
  switch (args.m) {
    case 1:
      return multiply_as<T, 1>(args);
    case 2:
      return multiply_as<T, 2>(args);
    case 3:
      return multiply_as<T, 3>(args);
    default:
      return multiply_as<T, 4>(args);
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
  with_type(args.b_dtype, [&](auto tag) { multiply_of<typename decltype(tag)::Type>(args); });
}

}  // namespace

extern const GemmSkinnyKernels gemm_skinny_kernels = {kMaxRows, prepared_bytes, prepare, multiply};

}  // namespace transformer_engine::cpu::TE_ISA
