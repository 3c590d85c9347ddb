// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a thread of a kernel that quantizes in blocks holds of a row: kSourceVector neighbours,
// rounded to the source's element type. A kernel that writes two copies needs its values twice, so
// elements of two bytes stay packed in pairs, which halves the registers.
// Alignment, the format of the codes and the edges of the matrix are no template arguments: each
// source has few kernels, and what lies at an edge takes a loop of its own, one element a turn.
#pragma once

#include <initializer_list>

#include "cuda/device/reduce.h"
#include "cuda/device/source.h"
#include "cuda/dispatch.h"

namespace transformer_engine::cuda {

// The matrix of the values, and whether its rows allow vectors of kSourceVector elements.
struct Extent {
  int64_t rows;
  int64_t cols;
  bool is_aligned;

  __device__ __forceinline__ bool contains(int64_t row, int64_t col) const {
    return row < rows && col < cols;
  }
};

// values[index] of an array in registers, whose other elements have constant indices.
template <class T, int kN>
__device__ __forceinline__ T pick(const T (&values)[kN], int index) {
  T picked = values[0];
#pragma unroll
  for (int i = 1; i < kN; ++i) {
    picked = i == index ? values[i] : picked;
  }
  return picked;
}

// Two elements of two bytes in a word, the first in the low half.
template <class T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162_raw pair = __floats2bfloat162_rn(low, high);
    return __builtin_bit_cast(uint32_t, pair);
  }
  __device__ __forceinline__ static float low(uint32_t word) { return __uint_as_float(word << 16); }
  __device__ __forceinline__ static float high(uint32_t word) {
    return __uint_as_float(word & 0xFFFF0000U);
  }
};
template <>
struct Pair<__half> {
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    const __half2_raw pair = __floats2half2_rn(low, high);
    return __builtin_bit_cast(uint32_t, pair);
  }
  __device__ __forceinline__ static float low(uint32_t word) {
    return __low2float(__builtin_bit_cast(__half2_raw, word));
  }
  __device__ __forceinline__ static float high(uint32_t word) {
    return __high2float(__builtin_bit_cast(__half2_raw, word));
  }
};

template <class T>
struct RowVector {
  static constexpr int kWords = kSourceVector / 2;
  uint32_t words[kWords];

  __device__ __forceinline__ static RowVector rounded(const float (&values)[kSourceVector]) {
    RowVector row;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      row.words[i] = Pair<T>::pack(values[2 * i], values[2 * i + 1]);
    }
    return row;
  }
  __device__ __forceinline__ float get(int i) const {
    return i % 2 == 0 ? Pair<T>::low(words[i / 2]) : Pair<T>::high(words[i / 2]);
  }
};
template <>
struct RowVector<float> {
  float values[kSourceVector];

  __device__ __forceinline__ static RowVector rounded(const float (&values)[kSourceVector]) {
    RowVector row;
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      row.values[i] = values[i];
    }
    return row;
  }
  __device__ __forceinline__ float get(int i) const { return values[i]; }
};

// Zeros for what lies outside the matrix.
template <class Source>
__device__ __forceinline__ RowVector<typename Source::Element> load_row_vector(
    const Source& source, int64_t row, int64_t col, const Extent& extent) {
  float values[kSourceVector] = {};
  if (row < extent.rows) {
    if (extent.is_aligned && col + kSourceVector <= extent.cols) {
      source.template load<kSourceVector, true>(row, col, values);
    } else {
#pragma unroll 1
      for (int i = 0; i < kSourceVector && col + i < extent.cols; ++i) {
        float one[1];
        source.template load<1, false>(row, col + i, one);
#pragma unroll
        for (int j = 0; j < kSourceVector; ++j) {
          values[j] = i == j ? one[0] : values[j];
        }
      }
    }
  }
  return RowVector<typename Source::Element>::rounded(values);
}

// The part inside the matrix, to `output` [rows, cols].
template <class T>
__device__ __forceinline__ void store_row_vector(const RowVector<T>& vector, T* output, int64_t row,
                                                 int64_t col, const Extent& extent) {
  if (row >= extent.rows) {
    return;
  }
  float values[kSourceVector];
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    values[i] = vector.get(i);
  }
  T* const first = output + row * extent.cols + col;
  if (extent.is_aligned && col + kSourceVector <= extent.cols) {
    store_floats<kSourceVector, true>(first, values);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kSourceVector && col + i < extent.cols; ++i) {
    first[i] = from_float<T>(pick(values, i));
  }
}

// A thread's part of the matrix, kSourceVector rows of vectors. Place: row(i) and col().
template <class T>
using Part = RowVector<T>[kSourceVector];

// Loads it, and stores it to `output` unless that is null.
template <class Source, class Place>
__device__ __forceinline__ void load_part(const Source& source, const Place& place,
                                          const Extent& extent, typename Source::Element* output,
                                          Part<typename Source::Element>& values) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    values[i] = load_row_vector(source, place.row(i), place.col(), extent);
  }
  if (output != nullptr) {
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      store_row_vector(values[i], output, place.row(i), place.col(), extent);
    }
  }
}

// Bytes, four to a word, the first in the lowest byte.
template <int kWords>
using Bytes = Vec<uint32_t, kWords>;

// bytes `index` and up of a row of `count`, as far as they lie inside.
template <int kWords>
__device__ __forceinline__ void store_bytes(const Bytes<kWords>& bytes, uint8_t* row, int64_t index,
                                            int64_t count, bool is_aligned) {
  if (is_aligned && index + 4 * kWords <= count) {
    bytes.store(reinterpret_cast<uint32_t*>(row + index));
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 4 * kWords && index + i < count; ++i) {
    row[index + i] = static_cast<uint8_t>(pick(bytes.v, i / 4) >> (8 * (i % 4)));
  }
}

// kSourceVector values times their scales, and their codes.
struct Products {
  float v[kSourceVector];
};
using Codes = Bytes<kSourceVector / 4>;

template <class Format>
__device__ __forceinline__ Codes encode_codes_as(const Products& products) {
  Codes codes;
#pragma unroll
  for (int i = 0; i < kSourceVector; i += 4) {
    const uint32_t low = encode_fp8_pair<Format>(products.v[i], products.v[i + 1]);
    const uint32_t high = encode_fp8_pair<Format>(products.v[i + 2], products.v[i + 3]);
    codes.v[i / 4] = low | (high << 16);
  }
  return codes;
}
// A call where no instruction encodes FP8: the code for it is long, and a kernel has many of them.
#if defined(TE_CUDA_EMULATED) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890)
__device__ __attribute__((noinline)) inline Codes
#else
__device__ __forceinline__ Codes
#endif
encode_codes(Products products, bool is_e5m2) {
  return is_e5m2 ? encode_codes_as<numerics::E5M2>(products)
                 : encode_codes_as<numerics::E4M3>(products);
}

__device__ __forceinline__ float fp8_max_of(bool is_e5m2) {
  return is_e5m2 ? numerics::E5M2::kMax : numerics::E4M3::kMax;
}

// max |x| of a thread's part, per row and per column.
struct PartAmax {
  float of_row[kSourceVector] = {};
  float of_col[kSourceVector] = {};

  template <class T>
  __device__ __forceinline__ explicit PartAmax(const Part<T>& rows) {
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
#pragma unroll
      for (int j = 0; j < kSourceVector; ++j) {
        const float value = fabsf(rows[i].get(j));
        of_row[i] = max_skip_nan(of_row[i], value);
        of_col[j] = max_skip_nan(of_col[j], value);
      }
    }
  }
  __device__ __forceinline__ float of_all() const {
    float amax = of_row[0];
#pragma unroll
    for (int i = 1; i < kSourceVector; ++i) {
      amax = max_skip_nan(amax, of_row[i]);
    }
    return amax;
  }
};

// ---- host

// Calls body(std::true_type or std::false_type): whether the kernel can write a columnwise copy.
template <class Source, class Body>
void for_columnwise(const BlockQuantizedOutput& quantized, const Body& body) {
  if constexpr (HasLongCode<Source>) {
    body(std::true_type{});
  } else {
    for_bool(quantized.columnwise.data.data != nullptr, body);
  }
}

// The extent of a source, of its rounded values and of copies of its codes with rows as long.
template <class Source>
Extent extent_of(const Source& source, int64_t rows, int64_t cols,
                 const typename Source::Element* output,
                 std::initializer_list<const void*> copies = {}) {
  bool is_aligned =
      source.can_be_aligned() && has_aligned_rows(output, cols, sizeof(typename Source::Element));
  for (const void* copy : copies) {
    is_aligned = is_aligned && has_aligned_rows(copy, cols, 1, kSourceVector);
  }
  return {rows, cols, is_aligned};
}

}  // namespace transformer_engine::cuda
