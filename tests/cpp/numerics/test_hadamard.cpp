// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The 16 x 16 transform against a product with its matrix in FP64.
#include "numerics/hadamard.h"

#include <gtest/gtest.h>
#include <transformer_engine/block_scaling.h>

#include <cmath>
#include <random>

namespace {

using transformer_engine::kHadamardSigns;
using transformer_engine::numerics::random_hadamard;

// Entry (i, j) of diag(s) * H16 / 4.
double entry(int i, int j, uint16_t signs) {
  const int minus = __builtin_popcount(static_cast<unsigned>(i & j)) + ((signs >> i) & 1);
  return minus % 2 == 0 ? 0.25 : -0.25;
}

TEST(Hadamard, FixedSigns) {
  const char expected[] = "+++-+------+-+--";
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(expected[i], ((kHadamardSigns >> i) & 1) != 0 ? '-' : '+') << i;
  }
}

// Small whole numbers: every sum is exact.
TEST(Hadamard, EqualsTheMatrixProductWhereAllSumsAreExact) {
  std::mt19937 generator(3);
  std::uniform_int_distribution<int> number(-1000, 1000);
  for (const uint16_t signs : {uint16_t{0}, kHadamardSigns, uint16_t{0xFFFF}, uint16_t{0x0001}}) {
    float v[16];
    double expected[16] = {};
    for (int i = 0; i < 16; ++i) {
      v[i] = static_cast<float>(number(generator));
      for (int j = 0; j < 16; ++j) {
        expected[j] += static_cast<double>(v[i]) * entry(i, j, signs);
      }
    }
    random_hadamard(v, signs);
    for (int j = 0; j < 16; ++j) {
      EXPECT_EQ(static_cast<double>(v[j]), expected[j]) << j;
    }
  }
}

// Every result is a tree of four additions: each rounds by 2^-24 of at most the sum of magnitudes.
TEST(Hadamard, IsWithinFourRoundingsOfTheMatrixProduct) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  for (int repeat = 0; repeat < 1000; ++repeat) {
    float v[16];
    double expected[16] = {};
    double magnitudes = 0.0;
    for (int i = 0; i < 16; ++i) {
      v[i] = std::ldexp(normal(generator), repeat % 40 - 20);
      magnitudes += std::abs(static_cast<double>(v[i])) * 0.25;
      for (int j = 0; j < 16; ++j) {
        expected[j] += static_cast<double>(v[i]) * entry(i, j, kHadamardSigns);
      }
    }
    random_hadamard(v, kHadamardSigns);
    const double bound = magnitudes * (std::pow(1.0 + 0x1p-24, 4) - 1.0);
    for (int j = 0; j < 16; ++j) {
      EXPECT_NEAR(static_cast<double>(v[j]), expected[j], bound) << j;
    }
  }
}

TEST(Hadamard, IsOrthogonal) {
  for (int i = 0; i < 16; ++i) {
    float v[16] = {};
    v[i] = 1.0F;
    random_hadamard(v, kHadamardSigns);
    for (int k = 0; k < 16; ++k) {
      float w[16] = {};
      w[k] = 1.0F;
      random_hadamard(w, kHadamardSigns);
      float dot = 0.0F;
      for (int j = 0; j < 16; ++j) {
        dot += v[j] * w[j];
      }
      EXPECT_EQ(dot, i == k ? 1.0F : 0.0F);
    }
  }
}

TEST(Hadamard, SpreadsNaNAndInfinityOverTheGroup) {
  for (const float special : {std::nanf(""), HUGE_VALF}) {
    float v[16] = {1.0F, 2.0F, special};
    random_hadamard(v, kHadamardSigns);
    for (const float value : v) {
      EXPECT_FALSE(std::isfinite(value));
    }
  }
}

}  // namespace
