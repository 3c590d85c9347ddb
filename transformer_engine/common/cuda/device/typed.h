// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// High-precision operands whose type a kernel learns at run time. The branch on it is the same for
// all threads and stands outside the loads of a vector, so it costs an instruction or two; a kernel
// then needs no instantiation per combination of operand types.
#pragma once

#include <type_traits>

#include "cuda/device/per_tensor.h"
#include "cuda/device/source.h"

namespace transformer_engine::cuda {

struct TypedPointer {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};

inline TypedPointer typed(const TensorView& view) { return {view.data, view.dtype}; }
// Whether the rows of `view` allow vectors of kSourceVector elements; true for null.
inline bool has_vector_rows(const TensorView& view) {
  return view.cols % kSourceVector == 0 &&
         has_aligned_rows(view.data, view.cols, element_size_bytes(view.dtype));
}

// Calls body(data as a pointer to its type).
template <class Body>
__device__ __forceinline__ void with_type(const TypedPointer& operand, const Body& body) {
  switch (operand.dtype) {
    case DType::kBFloat16:
      return body(static_cast<__nv_bfloat16*>(operand.data));
    case DType::kFloat16:
      return body(static_cast<__half*>(operand.data));
    default:
      return body(static_cast<float*>(operand.data));
  }
}

// One element.
__device__ __forceinline__ float load_any(const TensorView& view, int64_t index) {
  float value = 0.0F;
  with_type({view.data, view.dtype}, [&](const auto* data) { value = to_float(data[index]); });
  return value;
}
__device__ __forceinline__ void store_any(const TensorView& view, int64_t index, float value) {
  with_type({view.data, view.dtype}, [&](auto* data) {
    data[index] = from_float<std::remove_pointer_t<decltype(data)>>(value);
  });
}

// Columns [col, col + kSourceVector) of the row that begins at element `row_start`; zeros beyond
// `cols`.
template <bool kAligned>
__device__ __forceinline__ void load_typed(const TypedPointer& operand, int64_t row_start,
                                           int64_t col, int64_t cols,
                                           float (&values)[kSourceVector]) {
  with_type(operand, [&](const auto* data) {
    const auto* row = data + row_start;
    if (col + kSourceVector <= cols) {
      load_floats<kSourceVector, kAligned>(row + col, values);
      return;
    }
#pragma unroll
    for (int i = 0; i < kSourceVector; ++i) {
      values[i] = col + i < cols ? to_float(row[col + i]) : 0.0F;
    }
  });
}

// Rounds to the operand's type; what lies inside `cols` is stored.
template <bool kAligned>
__device__ __forceinline__ void store_typed(const TypedPointer& operand, int64_t row_start,
                                            int64_t col, int64_t cols,
                                            const float (&values)[kSourceVector]) {
  with_type(operand, [&](auto* data) {
    per_tensor::store_floats_part<kAligned>(data + row_start, col, cols, values);
  });
}

template <class T>
__device__ __forceinline__ void round_all(const T*, float (&values)[kSourceVector]) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    values[i] = to_float(from_float<T>(values[i]));
  }
}
// Rounds to the operand's type, in place; a null pointer has a type as well.
__device__ __forceinline__ void round_typed(const TypedPointer& operand,
                                            float (&values)[kSourceVector]) {
  with_type(operand, [&](const auto* data) { round_all(data, values); });
}

}  // namespace transformer_engine::cuda
