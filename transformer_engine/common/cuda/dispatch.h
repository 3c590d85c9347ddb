// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// From the dtypes of an op's arguments to the types of its kernels. Host code.
#pragma once

#include "cuda/device/convert.h"
#include "cuda/device/vector.h"

namespace transformer_engine::cuda {

template <class T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<float, __nv_bfloat16 or __half>); ops have checked that dtype is one of them.
template <class Body>
void for_high_precision(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kBFloat16:
      return body(TypeTag<__nv_bfloat16>{});
    case DType::kFloat16:
      return body(TypeTag<__half>{});
    default:
      return body(TypeTag<float>{});
  }
}

// Calls body(TypeTag<numerics::E4M3 or E5M2>).
template <class Body>
void for_fp8(DType dtype, const Body& body) {
  if (dtype == DType::kFloat8E5M2) {
    return body(TypeTag<numerics::E5M2>{});
  }
  return body(TypeTag<numerics::E4M3>{});
}

// Calls body(std::true_type or std::false_type): a condition becomes a template argument.
template <class Body>
void for_bool(bool condition, const Body& body) {
  if (condition) {
    return body(std::true_type{});
  }
  return body(std::false_type{});
}

// One of the copies that are wanted; they have the same format and type of scales.
inline const BlockScaledMatrix& any_copy(const BlockQuantizedOutput& quantized) {
  return quantized.rowwise.is_wanted() ? quantized.rowwise : quantized.columnwise;
}

template <class T>
T* data_of(const TensorView& view) {
  return static_cast<T*>(view.data);
}

}  // namespace transformer_engine::cuda
