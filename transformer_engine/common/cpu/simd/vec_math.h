// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// exp, sigmoid, tanh, sine and cosine of float vectors. Only additions, products, fma, division and
// power-of-two scaling, so that every instruction set gives the same bits. Largest error over all
// floats, in units in the last place of the exact result (checked in test_simd.cpp): exp 1,
// sigmoid 2.5, tanh 2, sine and cosine (up to 2^17) 1.2. NaN gives NaN. V is Vf or Pack. The
// polynomials are minimax fits in relative error (Remez exchange).
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

struct SinCos {
  Vf sin, cos;
};
// For |x| <= 2^17 or NaN; worthless beyond. x = n pi / 2 + r with |r| <= pi / 4 (and 0.006 for the
// rounding of n). pi / 2 is taken in three parts: the first difference is exact, because n has 17
// bits and both operands are multiples of 2^-24 below 1; the parts leave an error of n 2^-76, where
// no float comes closer to a multiple of pi / 2 than 2^-28.
TE_INLINE SinCos sin_cos(Vf x) {
  // Adding 1.5 * 2^23 leaves the nearest whole number in the low mantissa bits.
  const Vf shifter = set1(0x1.8p23F);
  const Vf shifted = fma(x, set1(0x1.45f306p-1F), shifter);
  const Vi quadrant = as_int(shifted);
  const Vf n = shifted - shifter;
  Vf r = fma(n, set1(-0x1.921fb6p0F), x);
  r = fma(n, set1(0x1.777a5cp-25F), r);
  r = fma(n, set1(0x1.ee59dap-50F), r);
  const Vf square = r * r;
  Vf p = set1(-0x1.98eb8ep-13F);
  p = fma(p, square, set1(0x1.11066ap-7F));
  p = fma(p, square, set1(-0x1.555544p-3F));
  const Vf sine = fma(p * square, r, r);
  Vf q = set1(0x1.9a5948p-16F);
  q = fma(q, square, set1(-0x1.6c0e38p-10F));
  q = fma(q, square, set1(0x1.55554ep-5F));
  const Vf cosine = fma(q * square, square, fma(square, set1(-0.5F), set1(1.0F)));
  // Odd quadrants exchange the two; bit 1 of n is the sign of the sine, of n + 1 the cosine's.
  const Vi one = set1_int(1);
  const Vi two = set1_int(2);
  const Mask is_odd = less(as_float(shift_left<31>(quadrant) | as_int(set1(1.0F))), zero());
  const Vi sin_sign = shift_left<30>(quadrant & two);
  const Vi cos_sign = shift_left<30>((quadrant + one) & two);
  return {as_float(as_int(select(is_odd, cosine, sine)) ^ sin_sign),
          as_float(as_int(select(is_odd, sine, cosine)) ^ cos_sign)};
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
