// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One element of a high-precision matrix in host memory, by its place in row-major order.
#pragma once

#include <transformer_engine/types.h>

#include "numerics/half.h"

namespace transformer_engine {

// Element `index` as FP32 (exact), and back (rounded to nearest even).
inline float load_float(const TensorView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kBFloat16:
      return numerics::float_from_bf16(static_cast<const uint16_t*>(view.data)[index]);
    case DType::kFloat16:
      return numerics::float_from_fp16(static_cast<const uint16_t*>(view.data)[index]);
    default:
      return static_cast<const float*>(view.data)[index];
  }
}

inline void store_float(const TensorView& view, int64_t index, float value) {
  switch (view.dtype) {
    case DType::kBFloat16:
      static_cast<uint16_t*>(view.data)[index] = numerics::bf16_from_float(value);
      break;
    case DType::kFloat16:
      static_cast<uint16_t*>(view.data)[index] = numerics::fp16_from_float(value);
      break;
    default:
      static_cast<float*>(view.data)[index] = value;
  }
}

}  // namespace transformer_engine
