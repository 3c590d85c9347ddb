// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cpu/simd/ on every instruction set of this machine: conversions over all codes, arithmetic
// against libm in FP64, and equality of all instruction sets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cpu/simd_probe.h"
#include "helpers/isas.h"

namespace {

namespace te = transformer_engine;
using te::cpu::SimdProbe;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<te::testing::NamedTable<SimdProbe>> probes() {
  return TE_TABLES_OF(SimdProbe, simd_probe);
}

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Every 2^12-th float of either sign, all exponents, with the special values; odd length, so that
// the last vector is partial on every width.
std::vector<float> float_samples() {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    x.push_back(from_bits(static_cast<uint32_t>(bits)));
  }
  for (const float special : {0.0F, -0.0F, kInf, -kInf, std::nanf(""), 1.0F, -1.0F, 65504.0F,
                              65519.9961F, 65520.0F, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, 0x1p-149F}) {
    x.push_back(special);
  }
  x.resize(x.size() - (x.size() % 2 == 0 ? 1 : 0));
  return x;
}

// What sine and cosine take: magnitudes up to 2^17 and NaN, and the floats next to every multiple
// of pi / 2 up to there, where the reduction cancels most.
std::vector<float> angle_samples() {
  std::vector<float> x;
  for (const float value : float_samples()) {
    if (!(std::abs(value) > 0x1p17F)) {
      x.push_back(value);
    }
  }
  for (int n = 1; n * M_PI_2 < 0x1p17; ++n) {
    const auto nearest = static_cast<float>(n * M_PI_2);
    for (const float value : {nearest, std::nextafter(nearest, 0.0F), -nearest}) {
      x.push_back(value);
    }
  }
  return x;
}

// Distance of y from the exact value in units in the last place of FP32 at that value.
double ulps(float y, double exact) {
  if (std::isnan(exact) || std::isnan(y)) {
    return std::isnan(exact) == std::isnan(y) ? 0.0 : 1e9;
  }
  const auto rounded = static_cast<float>(exact);
  if (y == rounded) {
    return 0.0;
  }
  if (std::isinf(y) || std::isinf(rounded)) {
    return 1e9;
  }
  const int exponent = std::max(std::ilogb(rounded == 0.0F ? 0x1p-149F : rounded), -126);
  return std::abs(static_cast<double>(y) - exact) / std::ldexp(1.0, exponent - 23);
}

struct Unary {
  const char* name;
  void (*SimdProbe::*run)(const float*, float*, int64_t);
  double (*exact)(double);
  double max_ulps;  // as stated in vec_math.h
};

double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double exact_exp(double x) { return std::exp(x); }
double exact_tanh(double x) { return std::tanh(x); }
double exact_sin(double x) { return std::sin(x); }
double exact_cos(double x) { return std::cos(x); }
double exact_sqrt(double x) { return std::sqrt(x); }

const Unary kUnaries[] = {
    {"exp", &SimdProbe::exp, exact_exp, 1.0},
    {"sigmoid", &SimdProbe::sigmoid, exact_sigmoid, 2.5},
    {"tanh", &SimdProbe::tanh, exact_tanh, 2.0},
    {"sqrt", &SimdProbe::sqrt, exact_sqrt, 0.5},
};
const Unary kOfAngles[] = {
    {"sin", &SimdProbe::sin, exact_sin, 2.0},
    {"cos", &SimdProbe::cos, exact_cos, 2.0},
};

// Round to nearest even to a format with `mantissa` explicit bits, smallest exponent `emin` and
// largest finite value `max`, in exact FP64 arithmetic.
double round_to_format(double x, int mantissa, int emin, double max) {
  if (std::isnan(x) || std::isinf(x) || x == 0.0) {
    return x;
  }
  const int exponent = std::max(std::ilogb(x), emin);
  const double unit = std::ldexp(1.0, exponent - mantissa);
  const double rounded = std::nearbyint(x / unit) * unit;
  return std::abs(rounded) > max ? std::copysign(HUGE_VAL, x) : rounded;
}

double fp16_value(uint16_t code) {
  const int exponent = (code >> 10) & 31;
  const int mantissa = code & 1023;
  double x = exponent == 0    ? std::ldexp(mantissa, -24)
             : exponent == 31 ? (mantissa == 0 ? HUGE_VAL : std::nan(""))
                              : std::ldexp(1024 + mantissa, exponent - 25);
  return (code & 0x8000) != 0 ? -x : x;
}

void expect_same_value(float got, double expected, const char* isa, float input) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << isa << " input " << input << " got " << got;
    return;
  }
  EXPECT_EQ(to_bits(got), to_bits(static_cast<float>(expected)))
      << isa << " input " << input << " got " << got << " expected " << expected;
}

void expect_stated_error(const Unary& unary, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (const auto& [isa, probe] : probes()) {
    (probe->*unary.run)(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0.0;
    float at = 0.0F;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], unary.exact(x[i]));
      if (error > worst) {
        worst = error;
        at = x[i];
      }
    }
    EXPECT_LE(worst, unary.max_ulps) << isa << " " << unary.name << "(" << at << ")";
    ::testing::Test::RecordProperty(std::string(isa) + "_" + unary.name + "_ulps",
                                    std::to_string(worst));
  }
}

TEST(Simd, FunctionsStayWithinTheStatedError) {
  for (const auto& unary : kUnaries) {
    expect_stated_error(unary, float_samples());
  }
  for (const auto& unary : kOfAngles) {
    expect_stated_error(unary, angle_samples());
  }
}

void expect_same_bits_on_all(const Unary& unary, const std::vector<float>& x) {
  const auto all = probes();
  std::vector<float> first(x.size()), other(x.size());
  (all[0].table->*unary.run)(x.data(), first.data(), static_cast<int64_t>(x.size()));
  for (const auto& [isa, probe] : all) {
    (probe->*unary.run)(x.data(), other.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(to_bits(first[i]) == to_bits(other[i]) ||
                  (std::isnan(first[i]) && std::isnan(other[i])))
          << unary.name << "(" << x[i] << ") " << all[0].isa << " " << first[i] << " " << isa << " "
          << other[i];
    }
  }
}

TEST(Simd, EveryInstructionSetGivesTheSameBits) {
  for (const auto& unary : kUnaries) {
    expect_same_bits_on_all(unary, float_samples());
  }
  for (const auto& unary : kOfAngles) {
    expect_same_bits_on_all(unary, angle_samples());
  }
}

TEST(Simd, FmaRoundsOnce) {
  // Random bit patterns reach every exponent; c near -a * b reaches cancellation.
  std::mt19937 rng(7);
  std::vector<float> a, b, c;
  for (int i = 0; i < 20001; ++i) {
    a.push_back(from_bits(rng()));
    b.push_back(from_bits(rng()));
    c.push_back(i % 3 == 0   ? from_bits(rng())
                : i % 3 == 1 ? -a.back() * b.back()
                             : from_bits(rng() & 0x807FFFFFU));
  }
  std::vector<float> y(a.size());
  for (const auto& [isa, probe] : probes()) {
    probe->fma(a.data(), b.data(), c.data(), y.data(), static_cast<int64_t>(a.size()));
    for (size_t i = 0; i < a.size(); ++i) {
      const float expected = std::fmaf(a[i], b[i], c[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(y[i])) << isa << " " << i;
      } else {
        ASSERT_EQ(to_bits(y[i]), to_bits(expected))
            << isa << " " << a[i] << " * " << b[i] << " + " << c[i];
      }
    }
  }
}

TEST(Simd, MinAndMaxReturnTheSecondOperandForNaN) {
  const float nan = std::nanf("");
  const std::vector<float> a = {1, 2, nan, 4, nan, -kInf, 0.5F};
  const std::vector<float> b = {2, 1, 3, nan, nan, kInf, -0.5F};
  std::vector<float> y(a.size());
  const auto n = static_cast<int64_t>(a.size());
  for (const auto& [isa, probe] : probes()) {
    probe->min(a.data(), b.data(), y.data(), n);
    for (size_t i = 0; i < a.size(); ++i) {
      expect_same_value(y[i], a[i] < b[i] ? a[i] : b[i], isa, a[i]);
    }
    probe->max(a.data(), b.data(), y.data(), n);
    for (size_t i = 0; i < a.size(); ++i) {
      expect_same_value(y[i], a[i] > b[i] ? a[i] : b[i], isa, a[i]);
    }
    probe->copysign(a.data(), b.data(), y.data(), n);
    for (size_t i = 0; i < a.size(); ++i) {
      expect_same_value(y[i], std::copysign(a[i], b[i]), isa, a[i]);
    }
    probe->less(a.data(), b.data(), y.data(), n);
    for (size_t i = 0; i < a.size(); ++i) {
      expect_same_value(y[i], a[i] < b[i] ? 1.0 : 0.0, isa, a[i]);
    }
  }
}

TEST(Simd, NeighboursChangePlaces) {
  for (const auto& [isa, probe] : probes()) {
    for (int n = 0; n <= 34; n += 2) {
      std::vector<float> x(n), y(n + 1, -7.0F);
      for (int i = 0; i < n; ++i) {
        x[i] = static_cast<float>(i);
      }
      probe->swap_pairs(x.data(), y.data(), n);
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(y[i], x[i ^ 1]) << isa << " n " << n << " lane " << i;
      }
      EXPECT_EQ(y[n], -7.0F) << isa << " wrote past " << n;
    }
  }
}

TEST(Simd, BytesSelectLanes) {
  for (const auto& [isa, probe] : probes()) {
    for (int n = 0; n < 40; ++n) {
      std::vector<float> x(n), y(n + 1, -7.0F);
      std::vector<uint8_t> bytes(n);
      for (int i = 0; i < n; ++i) {
        x[i] = static_cast<float>(i + 1);
        bytes[i] = static_cast<uint8_t>(i % 3 == 1 ? 0 : i % 3 == 0 ? 1 : 255);
      }
      probe->hide(x.data(), bytes.data(), y.data(), n);
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(y[i], bytes[i] != 0 ? 0.0F : x[i]) << isa << " n " << n << " lane " << i;
      }
      EXPECT_EQ(y[n], -7.0F) << isa << " wrote past " << n;
    }
  }
}

TEST(Simd, WidensEveryHalfCode) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint16_t>(i);
  }
  std::vector<float> y(codes.size());
  for (const auto& [isa, probe] : probes()) {
    probe->widen_bf16(codes.data(), y.data(), 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      ASSERT_EQ(to_bits(y[i]), i << 16) << isa;
    }
    probe->widen_fp16(codes.data(), y.data(), 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      expect_same_value(y[i], fp16_value(static_cast<uint16_t>(i)), isa, static_cast<float>(i));
    }
  }
}

TEST(Simd, NarrowsToNearestEven) {
  auto x = float_samples();
  // Every BF16 and FP16 value, the midpoint above it and both neighbours of that midpoint.
  for (uint32_t code = 0; code < 65536; ++code) {
    for (const uint32_t low : {0U, 0x7FFFU, 0x8000U, 0x8001U}) {
      x.push_back(from_bits((code << 16) | low));
    }
    const auto half = static_cast<float>(fp16_value(static_cast<uint16_t>(code)));
    const auto next = static_cast<float>(fp16_value(static_cast<uint16_t>(code + 1)));
    const float middle = (half + next) / 2;
    x.insert(x.end(), {half, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, next)});
  }
  std::vector<uint16_t> codes(x.size());
  std::vector<float> back(x.size());
  const auto n = static_cast<int64_t>(x.size());
  for (const auto& [isa, probe] : probes()) {
    probe->narrow_bf16(x.data(), codes.data(), n);
    probe->widen_bf16(codes.data(), back.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      expect_same_value(back[i], round_to_format(x[i], 7, -126, 0x1.FEp127), isa, x[i]);
    }
    probe->narrow_fp16(x.data(), codes.data(), n);
    probe->widen_fp16(codes.data(), back.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      expect_same_value(back[i], round_to_format(x[i], 10, -14, 65504.0), isa, x[i]);
    }
  }
}

TEST(Simd, PartialVectorsTouchOnlyTheirLanes) {
  for (const auto& [isa, probe] : probes()) {
    for (int n = 0; n <= 2 * probe->width; ++n) {
      const std::vector<float> x(n, 1.5F);
      std::vector<float> y(n + 1, -7.0F);
      std::vector<uint16_t> half(n + 1, 0x1234);
      probe->sqrt(x.data(), y.data(), n);
      EXPECT_EQ(y[n], -7.0F) << isa << " n " << n;
      probe->narrow_bf16(x.data(), half.data(), n);
      EXPECT_EQ(half[n], 0x1234) << isa << " n " << n;
      probe->narrow_fp16(x.data(), half.data(), n);
      EXPECT_EQ(half[n], 0x1234) << isa << " n " << n;
    }
  }
}

TEST(Simd, ReductionsCoverEveryLane) {
  for (const auto& [isa, probe] : probes()) {
    std::vector<float> x(probe->width);
    for (int i = 0; i < probe->width; ++i) {
      x[i] = static_cast<float>(1 << i);
    }
    EXPECT_EQ(probe->reduce_add(x.data()), static_cast<float>((1 << probe->width) - 1)) << isa;
    for (int i = 0; i < probe->width; ++i) {
      std::vector<float> peak(probe->width, -3.0F);
      peak[i] = 5.0F;
      EXPECT_EQ(probe->reduce_max(peak.data()), 5.0F) << isa << " lane " << i;
    }
  }
}

}  // namespace
