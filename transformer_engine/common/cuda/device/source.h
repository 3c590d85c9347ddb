// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sources: where the kernels that quantize take their values from, so that an op whose result is
// quantized (an activation, a norm) shares those kernels with the plain quantization. A source is a
// small struct, passed to the kernel by value:
//
//   using Element = ...;   // float, __nv_bfloat16 or __half: values are rounded to it before they
//                          // are quantized, which gives the bytes of a separate quantization
//   // The kN values of row `row` from column `col`. With kAligned the columns of every row and kN
//   // allow vector access (the host has checked it); all are inside the matrix.
//   template <int kN, bool kAligned>
//   __device__ void load(int64_t row, int64_t col, float (&values)[kN]) const;
//   static constexpr bool kHasWholeVectors = true;   // optional, saves code: with kAligned, no
//                                                    // vector runs over the end of a row
//   static constexpr bool kHasLongCode = true;       // optional: one kernel for every choice of
//                                                    // block-scaled copies, where two pay less
//   bool can_be_aligned() const;   // host: whether rows allow vectors of kSourceVector elements
#pragma once

#include "cuda/device/convert.h"
#include "cuda/device/vector.h"

namespace transformer_engine::cuda {

// Elements that a thread asks a source for at a time: 16 bytes of a two-byte type.
inline constexpr int kSourceVector = 8;

// kN consecutive elements as FP32.
template <int kN, bool kAligned, class T>
__device__ __forceinline__ void load_floats(const T* address, float (&values)[kN]) {
  if constexpr (kAligned) {
    constexpr int kWidth = kN < kVectorSize<T> ? kN : kVectorSize<T>;
#pragma unroll
    for (int i = 0; i < kN; i += kWidth) {
      const auto in = Vec<T, kWidth>::load(address + i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        values[i + j] = to_float(in.v[j]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      values[i] = to_float(address[i]);
    }
  }
}

template <int kN, bool kAligned, class T>
__device__ __forceinline__ void store_floats(T* address, const float (&values)[kN]) {
  if constexpr (kAligned) {
    constexpr int kWidth = kN < kVectorSize<T> ? kN : kVectorSize<T>;
#pragma unroll
    for (int i = 0; i < kN; i += kWidth) {
      Vec<T, kWidth> out;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        out.v[j] = from_float<T>(values[i + j]);
      }
      out.store(address + i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      address[i] = from_float<T>(values[i]);
    }
  }
}

// A matrix in memory.
template <class T>
struct MatrixSource {
  using Element = T;
  const T* data;
  int64_t cols;

  template <int kN, bool kAligned>
  __device__ __forceinline__ void load(int64_t row, int64_t col, float (&values)[kN]) const {
    load_floats<kN, kAligned>(data + row * cols + col, values);
  }
  bool can_be_aligned() const { return has_aligned_rows(data, cols, sizeof(T)); }
};

// The first `count` of kN values, one at a time; zeros beyond. One copy of the source's code, where
// an unrolled loop would have kN.
template <int kN, class Source>
__device__ __forceinline__ void load_one_by_one(const Source& source, int64_t row, int64_t col,
                                                int64_t count, float (&values)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    values[i] = 0.0F;
  }
#pragma unroll 1
  for (int j = 0; j < kN && j < count; ++j) {
    float one[1];
    source.template load<1, false>(row, col + j, one);
#pragma unroll
    for (int i = 0; i < kN; ++i) {  // so that values stay in registers
      values[i] = i == j ? one[0] : values[i];
    }
  }
}

template <class Source>
concept HasWholeVectors = requires { Source::kHasWholeVectors; };
template <class Source>
concept HasLongCode = requires { Source::kHasLongCode; };

// The values of `source`, rounded to its element type, for the part of kN columns from `col` that
// lies inside `cols`; zeros beyond. `row` is inside.
template <int kN, bool kAligned, class Source>
__device__ __forceinline__ void load_rounded(const Source& source, int64_t row, int64_t col,
                                             int64_t cols, float (&values)[kN]) {
  using T = typename Source::Element;
  if ((kAligned && HasWholeVectors<Source>) || col + kN <= cols) {
    source.template load<kN, kAligned>(row, col, values);
  } else {
    load_one_by_one(source, row, col, cols - col, values);
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    values[i] = to_float(from_float<T>(values[i]));
  }
}

}  // namespace transformer_engine::cuda
