// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The 16 x 16 random Hadamard transform: y = x * diag(s) * H16 / 4 for a row vector x of 16
// elements. s are signs, H16[i][j] = (-1)^popcount(i & j) is Sylvester's Hadamard matrix, so that
// the transform is orthogonal: a product of two transformed operands is that of the operands.
//
// Arithmetic, in FP32: negate by the signs (exact); four stages of butterflies at distance 1, 2, 4,
// 8, each replacing (a, b) by (a + b, a - b) with one rounding; times 0.25 (exact but for results
// below 2^-126). There is no rounding to the input's type afterwards. One NaN or infinity makes all
// 16 results NaN or infinite.
#pragma once

#include "numerics/host_device.h"

#include <cstdint>

namespace transformer_engine::numerics {

inline constexpr int kHadamardSize = 16;
inline constexpr float kHadamardScale = 0.25F;

// One stage, for floats and for vectors of floats.
template <int kDistance, typename V>
TE_NUMERIC void hadamard_butterflies(V (&v)[kHadamardSize]) {
  TE_UNROLL
  for (int i = 0; i < kHadamardSize; ++i) {
    if ((i & kDistance) == 0) {
      const V a = v[i];
      const V b = v[i + kDistance];
      v[i] = a + b;
      v[i + kDistance] = a - b;
    }
  }
}

// v * H16
template <typename V>
TE_NUMERIC void walsh_hadamard(V (&v)[kHadamardSize]) {
  hadamard_butterflies<1>(v);
  hadamard_butterflies<2>(v);
  hadamard_butterflies<4>(v);
  hadamard_butterflies<8>(v);
}

TE_NUMERIC void random_hadamard(float (&v)[kHadamardSize], uint16_t signs) {
  for (int i = 0; i < kHadamardSize; ++i) {
    v[i] = ((signs >> i) & 1) != 0 ? -v[i] : v[i];
  }
  walsh_hadamard(v);
  for (float& value : v) {
    value *= kHadamardScale;
  }
}

}  // namespace transformer_engine::numerics
