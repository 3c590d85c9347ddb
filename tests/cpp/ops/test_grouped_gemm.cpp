// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// grouped_gemm(): every product against FP64, and what a group refuses.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/grouped_gemm.h>

#include "helpers/errors.h"
#include "helpers/gemm_group.h"

namespace {

namespace te = transformer_engine;
using te::testing::expect_error;
using te::testing::GemmGroup;

TEST(GroupedGemm, EveryProductMatchesFp64) {
  for (size_t count = 0; count <= 9; ++count) {
    GemmGroup group(count, static_cast<unsigned>(count));
    const std::vector<te::GemmArgs> products = group.args();
    te::grouped_gemm({products}, te::Context{});
    group.expect_results_match_fp64();
  }
}

TEST(GroupedGemm, ABadProductIsFoundBeforeTheFirstOneRuns) {
  GemmGroup group(4, 1);
  std::vector<te::GemmArgs> products = group.args();
  products[3].b.matrix.cols += 1;
  expect_error<te::ValueError>([&] { te::grouped_gemm({products}, te::Context{}); },
                               {"a has k = ", "b k = "});
  group.expect_results_are_unwritten();
}

TEST(GroupedGemm, OutputsThatOtherProductsUseAreRefused) {
  const auto expect_refusal = [](const std::function<void(std::vector<te::GemmArgs>&)>& spoil,
                                 const char* words) {
    GemmGroup group(4, 2);
    std::vector<te::GemmArgs> products = group.args();
    spoil(products);
    expect_error<te::ValueError>([&] { te::grouped_gemm({products}, te::Context{}); },
                                 {words, "outputs need memory of their own"});
    group.expect_results_are_unwritten();
  };
  expect_refusal([](auto& products) { products[2] = products[1]; }, "d of product ");
  expect_refusal([](auto& products) { products[0].a.matrix.data = products[3].d.data; },
                 "shares memory with");
  expect_refusal(
      [](auto& products) {
        products[1].d.data = static_cast<char*>(products[2].b.matrix.data) + 1;
      },
      "shares memory with");
}

TEST(GroupedGemm, ProductsMayShareInputs) {
  GemmGroup group(2, 3);
  std::vector<te::GemmArgs> products = group.args();
  products.push_back(products[1]);
  std::vector<float> d(static_cast<size_t>(products[1].d.numel()));
  products[2].d = {d.data(), te::DType::kFloat32, products[1].d.rows, products[1].d.cols, nullptr};
  te::grouped_gemm({products}, te::Context{});
  group.expect_results_match_fp64();
}

}  // namespace
