// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// exp, sigmoid and tanh of float vectors. Only additions, products, fma, division and power-of-two
// scaling, so that every instruction set gives the same bits. Largest error over all floats,
// in units in the last place of the exact result (checked in test_simd.cpp): exp 1, sigmoid 2.5,
// tanh 2. NaN gives NaN. V is Vf or Pack. The polynomials are minimax fits in relative error (Remez
// exchange).
#pragma once

#include "cpu/simd/pack.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2, for -104 <= x <= 89 or NaN; denormal
// results are rounded once.
template <typename V>
TE_INLINE V exp_in_range(V x) {
  // Adding 1.5 * 2^23 leaves the nearest whole number in the low mantissa bits.
  const V shifter = splat<V>(0x1.8p23F);
  const V n = fma(x, splat<V>(0x1.715476p0F), shifter) - shifter;
  V r = fma(n, splat<V>(-0x1.62e43p-1F), x);  // ln 2, upper part
  r = fma(n, splat<V>(0x1.05c61p-29F), r);    // ln 2 - upper part is negative
  V p = splat<V>(0x1.6a2434p-10F);
  p = fma(p, r, splat<V>(0x1.1239e2p-7F));
  p = fma(p, r, splat<V>(0x1.5558f2p-5F));
  p = fma(p, r, splat<V>(0x1.555492p-3F));
  p = fma(p, r, splat<V>(0x1.fffffcp-2F));
  p = fma(p, r, splat<V>(1.0F));
  p = fma(p, r, splat<V>(1.0F));
  return scale_by_power_of_two(p, n);
}

// Overflows to Inf. Beyond the bounds the result is 0 or Inf; min and max keep a NaN in x.
template <typename V>
TE_INLINE V exp(V x) {
  return exp_in_range(max(splat<V>(-104.0F), min(splat<V>(89.0F), x)));
}

// e^-|x|
template <typename V>
TE_INLINE V exp_of_minus_magnitude(V x) {
  return exp_in_range(max(splat<V>(-104.0F), -abs(x)));
}

// 1 / (1 + e^-x), with full relative precision for negative x too.
template <typename V>
TE_INLINE V sigmoid(V x) {
  const V e = exp_of_minus_magnitude(x);
  return select(less(x, splat<V>(0.0F)), e, splat<V>(1.0F)) / (splat<V>(1.0F) + e);
}

template <typename V>
TE_INLINE V tanh(V x) {
  const V magnitude = abs(x);
  const V square = x * x;
  V p = splat<V>(-0x1.75e1ccp-8F);
  p = fma(p, square, splat<V>(0x1.52269cp-6F));
  p = fma(p, square, splat<V>(-0x1.b83c5ap-5F));
  p = fma(p, square, splat<V>(0x1.110726p-3F));
  p = fma(p, square, splat<V>(-0x1.555532p-2F));
  const V small = fma(p * square, magnitude, magnitude);
  const V e = exp_of_minus_magnitude(magnitude + magnitude);
  const V large = (splat<V>(1.0F) - e) / (splat<V>(1.0F) + e);
  return copysign(select(less(magnitude, splat<V>(0.625F)), small, large), x);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
