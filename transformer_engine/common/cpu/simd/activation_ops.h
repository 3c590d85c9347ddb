// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Plain, gated, clamped and doubly bounded activations as one interface for the kernels:
//   forward(params, a, b)                    y; b is unused by a plain activation
//   backward(params, a, b, dy, &da, &db)     gradients; returns y
#pragma once

#include "cpu/activation_kernels.h"
#include "cpu/simd/activations.h"
#include "cpu/simd/rows.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Elements of a row plus bias, where there is one.
template <typename Rows, typename Count>
TE_INLINE auto biased(const Rows& x, const float* bias, int64_t i, Count count) {
  const auto value = x.get(i, count);
  return bias != nullptr ? value + load(bias + i, count) : value;
}

template <typename V>
TE_INLINE V scaled(V v, float scale) {
  return v * splat<V>(scale);
}

// Columns of the result that lie side by side in each half of the input.
template <typename Op>
TE_INLINE int64_t block_cols(int64_t cols, int64_t glu_interleave_size) {
  return Op::kIsGated && glu_interleave_size > 0 ? glu_interleave_size : cols;
}

template <typename F>
struct Plain {
  static constexpr bool kIsGated = false;

  template <typename V>
  TE_INLINE static V forward(const ActivationParams&, V a, V) {
    return F::value(a);
  }
  template <typename V>
  TE_INLINE static V backward(const ActivationParams&, V a, V, V dy, V* da, V*) {
    V f, slope;
    F::derive(a, &f, &slope);
    *da = dy * slope;
    return f;
  }
};

template <typename F>
struct Gated {
  static constexpr bool kIsGated = true;

  template <typename V>
  TE_INLINE static V forward(const ActivationParams&, V a, V b) {
    return F::value(a) * b;
  }
  template <typename V>
  TE_INLINE static V backward(const ActivationParams&, V a, V b, V dy, V* da, V* db) {
    V f, slope;
    F::derive(a, &f, &slope);
    *da = dy * b * slope;
    *db = dy * f;
    return f * b;
  }
};

struct Clamped {
  static constexpr bool kIsGated = true;

  // The bounds first: min and max then keep a NaN.
  template <typename V>
  TE_INLINE static V gate(const ActivationParams& params, V b) {
    const V limit = splat<V>(params.limit);
    return max(-limit, min(limit, b)) + splat<V>(params.glu_linear_offset);
  }
  template <typename V>
  TE_INLINE static V forward(const ActivationParams& params, V a, V b) {
    const V bounded = min(splat<V>(params.limit), a);
    return scaled_silu(bounded, splat<V>(params.alpha)) * gate(params, b);
  }
  template <typename V>
  TE_INLINE static V backward(const ActivationParams& params, V a, V b, V dy, V* da, V* db) {
    const V limit = splat<V>(params.limit);
    const V factor = gate(params, b);
    V f, slope;
    derive_scaled_silu(min(limit, a), splat<V>(params.alpha), &f, &slope);
    *da = select(less(limit, a), splat<V>(0.0F), dy * factor * slope);
    *db = select(less(limit, abs(b)), splat<V>(0.0F), dy * f);
    return f * factor;
  }
};

struct Situ {
  static constexpr bool kIsGated = true;

  template <typename V>
  TE_INLINE static V scaled_tanh(V x, V beta) {
    return beta * tanh(x / beta);
  }
  template <typename V>
  TE_INLINE static V forward(const ActivationParams& params, V a, V b) {
    return scaled_tanh(a, splat<V>(params.beta1)) * sigmoid(a) *
           scaled_tanh(b, splat<V>(params.beta2));
  }
  template <typename V>
  TE_INLINE static V backward(const ActivationParams& params, V a, V b, V dy, V* da, V* db) {
    V bounded, bounded_slope, s, complement, factor, factor_slope;
    derive_scaled_tanh(a, splat<V>(params.beta1), &bounded, &bounded_slope);
    derive_scaled_tanh(b, splat<V>(params.beta2), &factor, &factor_slope);
    sigmoid_pair(a, &s, &complement);
    const V f = bounded * s;
    *da = dy * factor * fma(f, complement, bounded_slope * s);
    *db = dy * f * factor_slope;
    return f * factor;
  }
};

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

// The functions of a kernel table in the order of ActivationKind, each for every io_index.
#define TE_ACTIVATION_ROW(kernel, Op)                                             \
  {kernel<Op, RowsOf<float>>, kernel<Op, RowsOf<Bf16>>, kernel<Op, RowsOf<Fp16>>, \
   kernel<Op, AnyRows>}
#define TE_PLAIN_ACTIVATION_ROWS(kernel)                                               \
  TE_ACTIVATION_ROW(kernel, Plain<Gelu>), TE_ACTIVATION_ROW(kernel, Plain<QGelu>),     \
      TE_ACTIVATION_ROW(kernel, Plain<Relu>), TE_ACTIVATION_ROW(kernel, Plain<SRelu>), \
      TE_ACTIVATION_ROW(kernel, Plain<Silu>)
#define TE_GATED_ACTIVATION_ROWS(kernel)                                               \
  TE_ACTIVATION_ROW(kernel, Gated<Sigmoid>), TE_ACTIVATION_ROW(kernel, Gated<Gelu>),   \
      TE_ACTIVATION_ROW(kernel, Gated<QGelu>), TE_ACTIVATION_ROW(kernel, Gated<Relu>), \
      TE_ACTIVATION_ROW(kernel, Gated<SRelu>), TE_ACTIVATION_ROW(kernel, Gated<Silu>), \
      TE_ACTIVATION_ROW(kernel, Clamped), TE_ACTIVATION_ROW(kernel, Situ)
