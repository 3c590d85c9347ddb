// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Ops that quantize their result with one scale per block in the same pass: the bytes are those of
// a separate quantization of the rounded result, and nothing else of the op changes.
#include <gtest/gtest.h>
#include <transformer_engine/activation.h>
#include <transformer_engine/error.h>
#include <transformer_engine/normalization.h>

#include "helpers/errors.h"
#include "helpers/fused_quantize.h"

namespace {

namespace te = transformer_engine;
using te::ActivationKind;
using te::DType;
using te::NormKind;
using te::QuantizedOutput;
using te::TensorView;
using te::testing::expect_error;
using te::testing::expect_fused_blocks_equal_separate;
using te::testing::fill_random;
using te::testing::Matrix;
using te::testing::same_bytes;

// Two slabs of 128 rows and a rest; parts of blocks at the end of a row.
constexpr int64_t kRows = 300;
constexpr int64_t kCols = 141;
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16};

void check_norm_forward(NormKind kind, int64_t rows, int64_t cols, int threads) {
  for (const DType dtype : kTypes) {
    Matrix input(DType::kBFloat16, rows, cols);
    Matrix gamma(DType::kFloat32, 1, cols);
    Matrix beta(DType::kFloat32, 1, cols);
    fill_random(input, 1);
    fill_random(gamma, 2);
    fill_random(beta, 7);
    expect_fused_blocks_equal_separate(
        dtype, rows, cols, [&](TensorView output, const QuantizedOutput& quantized) {
          te::NormForwardArgs args;
          args.kind = kind;
          args.input = input.view();
          args.gamma = gamma.view();
          args.beta = kind == NormKind::kLayerNorm ? beta.view() : TensorView{};
          args.output = output;
          args.quantized = quantized;
          args.epsilon = 1e-5F;
          te::norm_forward(args, {.num_threads = threads});
        });
  }
}

TEST(FusedBlocks, NormForwardEqualsASeparateQuantization) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRMSNorm}) {
    check_norm_forward(kind, kRows, kCols, 2);
  }
}

// The result is then quantized as a whole.
TEST(FusedBlocks, MoreThreadsThanSlabsEqualASeparateQuantization) {
  check_norm_forward(NormKind::kRMSNorm, 100, 600, 3);
}

TEST(FusedBlocks, ActivationForwardEqualsASeparateQuantization) {
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU}) {
    for (const DType dtype : kTypes) {
      Matrix input(dtype, kRows, te::is_gated(kind) ? 2 * kCols : kCols);
      fill_random(input, 3);
      expect_fused_blocks_equal_separate(dtype, kRows, kCols,
                                         [&](TensorView output, const QuantizedOutput& quantized) {
                                           te::ActivationForwardArgs args;
                                           args.kind = kind;
                                           args.input = input.view();
                                           args.output = output;
                                           args.quantized = quantized;
                                           te::activation_forward(args, {.num_threads = 2});
                                         });
    }
  }
}

TEST(FusedBlocks, ActivationBackwardEqualsASeparateQuantization) {
  for (const ActivationKind kind : {ActivationKind::kGELU, ActivationKind::kSwiGLU}) {
    for (const DType dtype : kTypes) {
      Matrix input(dtype, kRows, te::is_gated(kind) ? 2 * kCols : kCols);
      Matrix grad_output(dtype, kRows, kCols);
      fill_random(input, 4);
      fill_random(grad_output, 5);
      Matrix plain_bias(DType::kFloat32, 1, input.cols());
      expect_fused_blocks_equal_separate(
          dtype, kRows, input.cols(), [&](TensorView grad_input, const QuantizedOutput& quantized) {
            Matrix grad_bias(DType::kFloat32, 1, input.cols());
            te::ActivationBackwardArgs args;
            args.kind = kind;
            args.grad_output = grad_output.view();
            args.input = input.view();
            args.grad_input = grad_input;
            args.grad_bias = quantized.is_wanted() ? grad_bias.view() : plain_bias.view();
            args.quantized = quantized;
            te::activation_backward(args, {.num_threads = 2});
            EXPECT_TRUE(!quantized.is_wanted() || same_bytes(grad_bias, plain_bias));
          });
    }
  }
}

// Chunks of bias sums smaller and larger than a band.
TEST(FusedBlocks, BiasGradientQuantizesWhatItReads) {
  constexpr int64_t kShapes[][2] = {{300, 141}, {100, 600}, {1111, 40}, {5000, 3}, {20000, 2}};
  for (const auto& [rows, cols] : kShapes) {
    Matrix grad_output(DType::kBFloat16, rows, cols);
    Matrix plain_bias(DType::kFloat32, 1, cols);
    fill_random(grad_output, 6);
    expect_fused_blocks_equal_separate(
        DType::kBFloat16, rows, cols, [&](TensorView output, const QuantizedOutput& quantized) {
          if (output.data != nullptr) {  // the values quantized are the input itself
            std::memcpy(output.data, grad_output.data<void>(), grad_output.size_bytes());
          }
          Matrix grad_bias(DType::kFloat32, 1, cols);
          te::bias_gradient(
              {.grad_output = grad_output.view(),
               .grad_bias = quantized.is_wanted() ? grad_bias.view() : plain_bias.view(),
               .quantized = quantized},
              {.num_threads = 3});
          EXPECT_TRUE(!quantized.is_wanted() || same_bytes(grad_bias, plain_bias));
        });
  }
}

TEST(FusedBlocks, WrongCopiesAreRefused) {
  Matrix grad_output(DType::kBFloat16, 40, 70);
  Matrix grad_bias(DType::kFloat32, 1, 70);
  const te::testing::BlockPlan& plan = te::testing::kBlockPlans[0];
  te::testing::BlockCopies copies(plan, 40, 70);
  const auto refuse = [&]<typename Error>(std::initializer_list<const char*> words,
                                          const auto& spoil) {
    QuantizedOutput quantized = copies.output(plan, true, true);
    spoil(quantized);
    expect_error<Error>(
        [&] {
          te::bias_gradient({.grad_output = grad_output.view(),
                             .grad_bias = grad_bias.view(),
                             .quantized = quantized},
                            {});
        },
        words);
  };
  refuse.operator()<te::ValueError>(
      {"bias_gradient", "quantized columnwise has shape [69, 40]"},
      [](QuantizedOutput& quantized) { quantized.blocks.columnwise.data.rows = 69; });
  refuse.operator()<te::ValueError>({"bias_gradient", "quantized rowwise has blocks of 1 x 128"},
                                    [](QuantizedOutput& quantized) {
                                      quantized.blocks.rowwise.scales.dtype = DType::kFloat8E8M0;
                                    });
  refuse.operator()<te::ValueError>(
      {"bias_gradient", "one scale and with one per block"},
      [&](QuantizedOutput& quantized) { quantized.amax = grad_bias.data<float>(); });
  refuse.operator()<te::ValueError>(
      {"bias_gradient", "epsilon is -1"},
      [](QuantizedOutput& quantized) { quantized.blocks.epsilon = -1.0F; });
}

}  // namespace
