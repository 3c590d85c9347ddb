// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Running error analysis of FP32 arithmetic (Higham, Accuracy and Stability of Numerical
// Algorithms, 2nd edition, section 3.3): a value in FP64 and how far an FP32 computation of it may
// be off. Each operation adds what its operands' errors become and one rounding.
#pragma once

#include <cmath>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

struct Approximate {
  double value = 0.0;
  double error = 0.0;

  static Approximate exact(double value) { return {value, 0.0}; }
  // A constant that was rounded to FP32.
  static Approximate rounded(double value) { return Approximate{value, 0.0}.round(); }

  Approximate round() const {
    const double rounding =
        kFloatRoundoff * (std::abs(value) + error) + half_spacing(DType::kFloat32);
    return {value, error + rounding};
  }
  Expected expected() const { return {value, error}; }
};

// Without the rounding, as inside an fma.
inline Approximate product(Approximate a, Approximate b) {
  return {a.value * b.value,
          std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error};
}
inline Approximate sum(Approximate a, Approximate b) {
  return {a.value + b.value, a.error + b.error};
}

inline Approximate operator*(Approximate a, Approximate b) { return product(a, b).round(); }
inline Approximate operator+(Approximate a, Approximate b) { return sum(a, b).round(); }
inline Approximate operator-(Approximate a) { return {-a.value, a.error}; }
inline Approximate operator-(Approximate a, Approximate b) { return a + -b; }
inline Approximate operator/(Approximate a, Approximate b) {
  const double smallest = std::abs(b.value) - b.error;
  const double quotient = a.value / b.value;
  return Approximate{quotient, (a.error + std::abs(quotient) * b.error) / smallest}.round();
}
inline Approximate root(Approximate a) {  // of 0 or more
  const double value = std::sqrt(a.value);
  const double above = std::sqrt(a.value + a.error) - value;
  const double below = value - std::sqrt(std::fmax(a.value - a.error, 0.0));
  return Approximate{value, std::fmax(above, below)}.round();
}

}  // namespace transformer_engine::testing
