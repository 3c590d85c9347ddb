// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Comparing a result with FP64 values, each with its own derived error bound.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "helpers/matrix.h"

namespace transformer_engine::testing {

// Half a unit in the last place, relative: the largest relative error of one rounding.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}

// Half the spacing of denormals: the largest error of rounding a tiny number.
inline double half_spacing(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-150 : dtype == DType::kFloat16 ? 0x1p-25 : 0x1p-134;
}

constexpr double kFloatRoundoff = 0x1p-24;

// Relative error (to the sum of magnitudes) of an FP32 sum of n terms in `lanes` partial sums, with
// `extra` roundings per term before: every term passes n / lanes additions and the lanes' tree.
inline double sum_roundoff(int64_t n, int lanes, int extra) {
  return (static_cast<double>(n / lanes) + std::log2(lanes) + extra + 1) * kFloatRoundoff;
}

// How a kernel adds up n terms: in `lanes` partial sums, each of whole runs of `run` terms.
struct SumOrder {
  int lanes = 1;
  int run = 1;

  double roundoff(int64_t n, int extra) const {
    const int64_t turn = static_cast<int64_t>(lanes) * run;
    return sum_roundoff(run == 1 ? n : (n + turn - 1) / turn * turn, lanes, extra);
  }
};

struct Expected {
  double value = 0.0;
  double bound = 0.0;  // error before the rounding to the output type
};

inline bool is_close(double got, const Expected& expected, DType dtype) {
  if (std::isnan(expected.value) || std::isinf(expected.value)) {
    return std::isnan(expected.value) ? std::isnan(got) : got == expected.value;
  }
  const double rounding =
      unit_roundoff(dtype) * (std::abs(expected.value) + expected.bound) + half_spacing(dtype);
  return std::abs(got - expected.value) <= expected.bound + rounding;
}

// Every element within its bound and one rounding to the output type. A failure says how many are
// outside and where the first is.
inline ::testing::AssertionResult all_close(Matrix& got, const std::vector<Expected>& expected) {
  if (got.numel() != static_cast<int64_t>(expected.size())) {
    return ::testing::AssertionFailure()
           << got.numel() << " elements, expected " << expected.size();
  }
  int64_t outside = 0;
  int64_t first = 0;
  for (int64_t i = got.numel() - 1; i >= 0; --i) {
    if (!is_close(got.get(i), expected[i], got.view().dtype)) {
      ++outside;
      first = i;
    }
  }
  if (outside == 0) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << outside << " of " << got.numel() << " outside; first at row " << first / got.cols()
         << " col " << first % got.cols() << ": got " << got.get(first) << ", expected "
         << expected[first].value << " within " << expected[first].bound << " and one rounding to "
         << dtype_name(got.view().dtype);
}

inline std::vector<double> values_of(Matrix& matrix) {
  std::vector<double> values(matrix.numel());
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    values[i] = matrix.get(i);
  }
  return values;
}

// Normal numbers of mean `center` and deviation `spread`.
inline void fill_normal(Matrix& matrix, uint32_t seed, float center = 0.0F, float spread = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(center, spread);
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    matrix.set(i, normal(generator));
  }
}

constexpr DType kHighPrecision[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

}  // namespace transformer_engine::testing
