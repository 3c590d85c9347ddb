// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Activation functions f and their derivatives on float vectors V, Vf or Pack. Formulas:
// activation.h.
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
template <typename V>
TE_INLINE void sigmoid_pair(V x, V* s, V* complement) {
  const V one = splat<V>(1.0F);
  const V e = exp_of_minus_magnitude(x);
  const V inverse = one / (one + e);
  const auto is_negative = less(x, splat<V>(0.0F));
  const V small = e * inverse;
  *s = select(is_negative, small, inverse);
  *complement = select(is_negative, inverse, small);
}

// f = beta * tanh(x / beta), slope = 1 - tanh^2. Written as 4e / (1 + e)^2 with e = e^(-2|u|), the
// slope keeps full relative precision where tanh is 1.
template <typename V>
TE_INLINE void derive_scaled_tanh(V x, V beta, V* f, V* slope) {
  const V u = x / beta;
  const V magnitude = abs(u);
  const V e = exp_of_minus_magnitude(magnitude + magnitude);
  const V inverse = splat<V>(1.0F) / (splat<V>(1.0F) + e);
  *f = beta * tanh(u);
  *slope = (splat<V>(4.0F) * e) * (inverse * inverse);
}

struct Gelu {
  static constexpr float kLinear = 0.79788456F;  // sqrt(2 / pi)
  static constexpr float kCubic = 0.03567741F;   // 0.044715 * sqrt(2 / pi)

  template <typename V>
  TE_INLINE static V twice_u(V x, V square) {
    return x * fma(square, splat<V>(2.0F * kCubic), splat<V>(2.0F * kLinear));
  }
  template <typename V>
  TE_INLINE static V value(V x) {
    return x * sigmoid(twice_u(x, x * x));
  }
  template <typename V>
  TE_INLINE static void derive(V x, V* f, V* slope) {
    // Beyond +-16 sigmoid(2u) is 0 or 1 to the last bit; the bound keeps u' from overflowing.
    const V bounded = max(splat<V>(-16.0F), min(splat<V>(16.0F), x));
    const V square = bounded * bounded;
    const V twice_u_slope = fma(square, splat<V>(6.0F * kCubic), splat<V>(2.0F * kLinear));
    V s, complement;
    sigmoid_pair(twice_u(bounded, square), &s, &complement);
    *f = x * s;
    *slope = fma(s * complement, bounded * twice_u_slope, s);
  }
};

// x * sigmoid(alpha * x)
template <typename V>
TE_INLINE V scaled_silu(V x, V alpha) {
  return x * sigmoid(alpha * x);
}
template <typename V>
TE_INLINE void derive_scaled_silu(V x, V alpha, V* f, V* slope) {
  V s, complement;
  sigmoid_pair(alpha * x, &s, &complement);
  *f = x * s;
  // The complement first: alpha * x may overflow where the complement is 0.
  *slope = fma(s * (x * complement), alpha, s);
}

struct QGelu {
  static constexpr float kAlpha = 1.702F;

  template <typename V>
  TE_INLINE static V value(V x) {
    return scaled_silu(x, splat<V>(kAlpha));
  }
  template <typename V>
  TE_INLINE static void derive(V x, V* f, V* slope) {
    derive_scaled_silu(x, splat<V>(kAlpha), f, slope);
  }
};

struct Silu {
  template <typename V>
  TE_INLINE static V value(V x) {
    return x * sigmoid(x);
  }
  template <typename V>
  TE_INLINE static void derive(V x, V* f, V* slope) {
    derive_scaled_silu(x, splat<V>(1.0F), f, slope);
  }
};

struct Relu {
  template <typename V>
  TE_INLINE static V value(V x) {
    return max(splat<V>(0.0F), x);
  }  // NaN in x stays
  template <typename V>
  TE_INLINE static void derive(V x, V* f, V* slope) {
    *f = value(x);
    *slope = select(less(splat<V>(0.0F), x), splat<V>(1.0F), splat<V>(0.0F));
  }
};

struct SRelu {
  template <typename V>
  TE_INLINE static V value(V x) {
    const V positive = Relu::value(x);
    return positive * positive;
  }
  template <typename V>
  TE_INLINE static void derive(V x, V* f, V* slope) {
    const V positive = Relu::value(x);
    *f = positive * positive;
    *slope = positive + positive;
  }
};

struct Sigmoid {
  template <typename V>
  TE_INLINE static V value(V x) {
    return sigmoid(x);
  }
  template <typename V>
  TE_INLINE static void derive(V x, V* f, V* slope) {
    V complement;
    sigmoid_pair(x, f, &complement);
    *slope = *f * complement;
  }
};

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
