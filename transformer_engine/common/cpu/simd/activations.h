// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Activation functions f and their derivatives on float vectors. Formulas: activation.h.
//   value(x)                  f(x)
//   derive(x, &f, &slope)     both
// GELU's 0.5 + 0.5 * tanh(u) is computed as sigmoid(2u), the same number without the cancellation
// at negative u. A derivative uses 1 - sigmoid(x) = sigmoid(-x), for the same reason. NaN gives
// NaN; -Inf gives NaN in gelu, qgelu and silu (their formula is -Inf * 0 there).
#pragma once

#include "cpu/simd/vec_math.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// s = sigmoid(x) and its complement 1 - s = sigmoid(-x), each with full relative precision.
TE_INLINE void sigmoid_pair(Vf x, Vf* s, Vf* complement) {
  const Vf one = set1(1.0F);
  const Vf e = exp(-abs(x));
  const Vf inverse = one / (one + e);
  const Mask is_negative = less(x, zero());
  const Vf small = e * inverse;
  *s = select(is_negative, small, inverse);
  *complement = select(is_negative, inverse, small);
}

struct Gelu {
  static constexpr float kLinear = 0.79788456F;  // sqrt(2 / pi)
  static constexpr float kCubic = 0.03567741F;   // 0.044715 * sqrt(2 / pi)

  TE_INLINE static Vf value(Vf x) {
    const Vf u = x * fma(x * x, set1(kCubic), set1(kLinear));
    return x * sigmoid(u + u);
  }
  TE_INLINE static void derive(Vf x, Vf* f, Vf* slope) {
    // Beyond +-16 sigmoid(2u) is 0 or 1 to the last bit; the bound keeps u' from overflowing.
    const Vf bounded = max(set1(-16.0F), min(set1(16.0F), x));
    const Vf square = bounded * bounded;
    const Vf u = bounded * fma(square, set1(kCubic), set1(kLinear));
    const Vf u_slope = fma(square, set1(6.0F * kCubic), set1(2.0F * kLinear));  // d(2u)/dx
    Vf s, complement;
    sigmoid_pair(u + u, &s, &complement);
    *f = x * s;
    *slope = fma(s * complement, bounded * u_slope, s);
  }
};

// x * sigmoid(alpha * x)
TE_INLINE Vf scaled_silu(Vf x, Vf alpha) { return x * sigmoid(alpha * x); }
TE_INLINE void derive_scaled_silu(Vf x, Vf alpha, Vf* f, Vf* slope) {
  Vf s, complement;
  sigmoid_pair(alpha * x, &s, &complement);
  *f = x * s;
  // The complement first: alpha * x may overflow where the complement is 0.
  *slope = fma(s * (x * complement), alpha, s);
}

struct QGelu {
  static constexpr float kAlpha = 1.702F;

  TE_INLINE static Vf value(Vf x) { return scaled_silu(x, set1(kAlpha)); }
  TE_INLINE static void derive(Vf x, Vf* f, Vf* slope) {
    derive_scaled_silu(x, set1(kAlpha), f, slope);
  }
};

struct Silu {
  TE_INLINE static Vf value(Vf x) { return x * sigmoid(x); }
  TE_INLINE static void derive(Vf x, Vf* f, Vf* slope) {
    derive_scaled_silu(x, set1(1.0F), f, slope);
  }
};

struct Relu {
  TE_INLINE static Vf value(Vf x) { return max(zero(), x); }  // NaN in x stays
  TE_INLINE static void derive(Vf x, Vf* f, Vf* slope) {
    *f = value(x);
    *slope = select(less(zero(), x), set1(1.0F), zero());
  }
};

struct SRelu {
  TE_INLINE static Vf value(Vf x) {
    const Vf positive = Relu::value(x);
    return positive * positive;
  }
  TE_INLINE static void derive(Vf x, Vf* f, Vf* slope) {
    const Vf positive = Relu::value(x);
    *f = positive * positive;
    *slope = positive + positive;
  }
};

struct Sigmoid {
  TE_INLINE static Vf value(Vf x) { return sigmoid(x); }
  TE_INLINE static void derive(Vf x, Vf* f, Vf* slope) {
    Vf complement;
    sigmoid_pair(x, f, &complement);
    *slope = *f * complement;
  }
};

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
