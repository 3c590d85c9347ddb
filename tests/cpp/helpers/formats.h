// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Number formats from their definitions, in FP64, independent of numerics/: the value of a code is
// (-1)^sign * 1.mantissa * 2^(exponent - bias), or 0.mantissa * 2^(1 - bias) where the exponent
// field is 0. Rounding searches the two neighbours among all codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace transformer_engine::testing {

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct Format {
  const char* name;
  int exponent_width;
  int mantissa_width;
  int bias;
  uint32_t infinity;   // code of +infinity; the first NaN where there is none
  uint32_t first_nan;  // smallest NaN code without sign; one past the last code where there is none

  uint32_t sign_bit() const { return 1U << (exponent_width + mantissa_width); }

  double value(uint32_t code) const {
    const uint32_t absolute = code & (sign_bit() - 1);
    const double sign = (code & sign_bit()) != 0 ? -1.0 : 1.0;
    if (absolute >= first_nan) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (absolute >= infinity) {
      return sign * HUGE_VAL;
    }
    const int exponent = static_cast<int>(absolute >> mantissa_width);
    const double mantissa = std::ldexp(absolute & ((1U << mantissa_width) - 1), -mantissa_width);
    return sign * (exponent == 0 ? std::ldexp(mantissa, 1 - bias)
                                 : std::ldexp(1.0 + mantissa, exponent - bias));
  }

  std::vector<double> finite_values() const {  // without sign, ascending; the index is the code
    std::vector<double> values;
    for (uint32_t code = 0; code < infinity; ++code) {
      values.push_back(value(code));
    }
    return values;
  }
};

inline constexpr Format kE4M3 = {"E4M3", 4, 3, 7, 0x7F, 0x7F};
inline constexpr Format kE5M2 = {"E5M2", 5, 2, 15, 0x7C, 0x7D};
inline constexpr Format kE2M1 = {"E2M1", 2, 1, 1, 0x08, 0x08};
inline constexpr Format kFP16 = {"FP16", 5, 10, 15, 0x7C00, 0x7C01};
inline constexpr Format kBF16 = {"BF16", 8, 7, 127, 0x7F80, 0x7F81};

// Finds the code nearest to a number, ties to the even code.
class NearestCode {
 public:
  explicit NearestCode(const Format& format) : format_(format), values_(format.finite_values()) {}

  // Largest finite code for everything beyond it.
  uint32_t saturating(double x) const {
    const double absolute = std::abs(x);
    const auto above = std::lower_bound(values_.begin(), values_.end(), absolute);
    uint32_t code = 0;
    if (above == values_.end()) {
      code = static_cast<uint32_t>(values_.size()) - 1;
    } else {
      code = static_cast<uint32_t>(above - values_.begin());
      if (code > 0) {
        const double up = *above - absolute;
        const double down = absolute - values_[code - 1];
        code -= down < up || (down == up && code % 2 == 1) ? 1 : 0;
      }
    }
    return code | (std::signbit(x) ? format_.sign_bit() : 0U);
  }

  // Infinity from half a step beyond the largest finite value on (IEEE 754 section 4.3.1).
  uint32_t overflowing(double x) const {
    const size_t count = values_.size();
    const double half_step = (values_[count - 1] - values_[count - 2]) / 2;
    if (std::abs(x) >= values_[count - 1] + half_step) {
      return format_.infinity | (std::signbit(x) ? format_.sign_bit() : 0U);
    }
    return saturating(x);
  }

 private:
  Format format_;
  std::vector<double> values_;
};

// FP32 numbers where rounding to `format` decides: every value, every midpoint of neighbours (the
// one beyond the largest value included), each with its FP32 neighbours, and both signs.
inline std::vector<float> rounding_cases(const Format& format) {
  std::vector<double> values = format.finite_values();
  values.push_back(2 * values[values.size() - 1] - values[values.size() - 2]);
  std::vector<float> cases;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (const double center : {values[i], (values[i] + values[i + 1]) / 2}) {
      const auto x = static_cast<float>(center);
      for (const float near : {x, std::nextafterf(x, -1.0F), std::nextafterf(x, HUGE_VALF)}) {
        cases.push_back(near);
        cases.push_back(-near);
      }
    }
  }
  return cases;
}

// FP32 numbers across the whole range: every exponent, both signs, spread mantissas, denormals,
// infinities.
inline std::vector<float> range_cases() {
  std::vector<float> cases;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 65537) {
    const float x = float_of(static_cast<uint32_t>(bits));
    if (!std::isnan(x)) {
      cases.push_back(x);
    }
  }
  for (const float x : {0.0F, 0x1p-149F, 0x1.fffffep127F, HUGE_VALF}) {
    cases.push_back(x);
    cases.push_back(-x);
  }
  return cases;
}

// NaNs of both signs: quiet, signalling, largest and smallest payload.
inline std::vector<float> nan_cases() {
  std::vector<float> cases;
  for (const uint32_t bits : {0x7FC00000U, 0x7F800001U, 0x7FFFFFFFU, 0x7FA00000U, 0x7F801FFFU}) {
    cases.push_back(float_of(bits));
    cases.push_back(float_of(bits | 0x80000000U));
  }
  return cases;
}

}  // namespace transformer_engine::testing
