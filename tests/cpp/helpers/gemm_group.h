// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Products of one group: of every kind of operand, with epilogues and sums, an empty one among
// them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "helpers/gemm_block_operand.h"

namespace transformer_engine::testing {

class GemmGroup {
 public:
  GemmGroup(size_t count, unsigned seed) {
    constexpr DType kResults[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
    for (size_t i = 0; i < count; ++i) {
      GemmCase spec;
      spec.m = i == 2 ? 0 : static_cast<int64_t>(1 + 5 * i);  // an expert without tokens
      spec.n = static_cast<int64_t>(16 * (1 + i % 3));
      spec.k = 64;
      spec.a_transposed = i % 2 != 0;
      spec.b_transposed = i % 3 == 1;
      spec.d_dtype = kResults[i % 3];
      spec.accumulate = i % 4 == 3;
      spec.has_bias = i % 4 == 1;
      const OperandKind& kind = kOperandKinds[(i + seed) % std::size(kOperandKinds)];
      problems_.push_back(
          std::make_unique<BlockProblem>(spec, kind, kind, seed + static_cast<unsigned>(i)));
      results_.push_back(std::make_unique<GemmMatrix>(problems_.back()->d_before));
      pre_.push_back(std::make_unique<GemmMatrix>(spec.d_dtype, spec.m, spec.n));
    }
  }

  std::vector<GemmArgs> args() {
    std::vector<GemmArgs> all;
    for (size_t i = 0; i < problems_.size(); ++i) {
      all.push_back(problems_[i]->args(*results_[i], *pre_[i]));
    }
    return all;
  }

  void expect_results_match_fp64() {
    for (size_t i = 0; i < problems_.size(); ++i) {
      for_each_element(i, [&](double got, int64_t row, int64_t col) {
        const GemmExpected expected = problems_[i]->expected(row, col).d;
        EXPECT_LE(std::abs(got - expected.value), expected.tolerance)
            << "product " << i << ", " << problems_[i]->spec().text() << " at " << row << ", "
            << col << ": got " << got << ", expected " << expected.value;
      });
    }
  }
  void expect_results_are_unwritten() {
    for (size_t i = 0; i < problems_.size(); ++i) {
      for_each_element(i, [&](double got, int64_t row, int64_t col) {
        EXPECT_EQ(got, problems_[i]->d_before.get(row, col)) << "product " << i;
      });
    }
  }

 private:
  template <typename Body>
  void for_each_element(size_t product, const Body& body) {
    const GemmMatrix& result = *results_[product];
    for (int64_t row = 0; row < result.rows; ++row) {
      for (int64_t col = 0; col < result.cols; ++col) {
        body(result.get(row, col), row, col);
      }
    }
  }

  std::vector<std::unique_ptr<BlockProblem>> problems_;
  std::vector<std::unique_ptr<GemmMatrix>> results_, pre_;
};

}  // namespace transformer_engine::testing
