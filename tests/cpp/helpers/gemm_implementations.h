// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Every GEMM there is, to run one after the other: gemm() itself, the reference, and each CPU GEMM
// on every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>
#include <transformer_engine/gemm.h>

#include <functional>
#include <string>
#include <vector>

#include "cpu/gemm.h"
#include "cpu/gemm_kernels.h"
#include "helpers/gemm_problem.h"
#include "helpers/isas.h"
#include "reference/gemm.h"

namespace transformer_engine::testing {

struct GemmImplementation {
  std::string name;
  const char* (*refusal)(const GemmArgs&, const Context&);
  std::function<void(const GemmArgs&, const Context&)> run;
};

inline std::vector<GemmImplementation> gemm_implementations() {
  constexpr auto never = +[](const GemmArgs&, const Context&) -> const char* { return nullptr; };
  std::vector<GemmImplementation> all;
  all.push_back({"gemm", never, gemm});
  all.push_back({"reference", never, reference::gemm});
  for (const auto& [isa, table] : TE_TABLES_OF(cpu::GemmKernels, gemm_kernels)) {
    all.push_back({std::string("packed ") + isa, never,
                   [table](const GemmArgs& args, const Context& context) {
                     cpu::gemm_packed_with(*table, args, context);
                   }});
  }
  for (const auto& [isa, table] : TE_TABLES_OF(cpu::GemmSkinnyKernels, gemm_skinny_kernels)) {
    all.push_back({std::string("skinny ") + isa, cpu::gemm_skinny_refusal,
                   [table](const GemmArgs& args, const Context& context) {
                     cpu::gemm_skinny_with(*table, args, context);
                   }});
  }
  return all;
}

inline Context threads(int count) {
  Context context;
  context.num_threads = count;
  return context;
}

// Runs every implementation that takes the problem and hands its result to `check`. Problem has
// d_before, args(d, pre) and spec().
template <typename Problem>
void for_each_result(Problem& problem, const Context& context,
                     const std::function<void(const GemmMatrix& d, const GemmMatrix& pre)>& check) {
  static const std::vector<GemmImplementation> all = gemm_implementations();
  for (const auto& implementation : all) {
    GemmMatrix d = problem.d_before;
    GemmMatrix pre(d.dtype, d.rows, d.cols);
    const GemmArgs args = problem.args(d, pre);
    if (implementation.refusal(args, context) != nullptr) {
      continue;
    }
    SCOPED_TRACE(implementation.name + ": " + problem.spec().text());
    implementation.run(args, context);
    check(d, pre);
  }
}

inline void expect_close(const GemmMatrix& actual, const std::vector<GemmExpected>& expected,
                         const char* name) {
  int64_t outside = 0;
  for (int64_t row = 0; row < actual.rows; ++row) {
    for (int64_t col = 0; col < actual.cols; ++col) {
      const auto& [value, tolerance] = expected[static_cast<size_t>(row * actual.cols + col)];
      const double got = actual.get(row, col);
      if (!(std::abs(got - value) <= tolerance) && ++outside == 1) {
        ADD_FAILURE() << name << "[" << row << ", " << col << "] is " << got << ", expected "
                      << value << " +- " << tolerance;
      }
    }
  }
  EXPECT_EQ(outside, 0) << name << ": elements outside the tolerance";
}

// Every implementation against problem.expected(row, col).
template <typename Problem>
void expect_results_match_fp64(Problem& problem, int num_threads) {
  std::vector<GemmExpected> d_expected;
  std::vector<GemmExpected> pre_expected;
  for (int64_t row = 0; row < problem.spec().m; ++row) {
    for (int64_t col = 0; col < problem.spec().n; ++col) {
      const auto expected = problem.expected(row, col);
      d_expected.push_back(expected.d);
      pre_expected.push_back(expected.pre);
    }
  }
  for_each_result(problem, threads(num_threads), [&](const GemmMatrix& d, const GemmMatrix& pre) {
    expect_close(d, d_expected, "d");
    if (problem.spec().has_pre) {
      expect_close(pre, pre_expected, "pre_epilogue");
    }
  });
}

}  // namespace transformer_engine::testing
