// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// y = f(x + bias), or f(a) * b for the halves a, b of x + bias, times the scale of the row, row by
// row. A missing scale is a product with 1, which changes no bit. Bytes from memory: each
// element of input and output once.
#include "cpu/activation_kernels.h"
#include "cpu/simd/activation_ops.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

template <typename Op, typename Rows>
void forward(const ActivationForwardRows& a) {
  // Rows that need not be told apart are one long row.
  const bool is_flat = !Op::kIsGated && a.bias == nullptr && a.act_scales == nullptr;
  const int64_t rows = is_flat ? 1 : a.rows;
  const int64_t cols = is_flat ? a.rows * a.cols : a.cols;
  constexpr int kHalves = Op::kIsGated ? 2 : 1;
  const int64_t block = block_cols<Op>(cols, a.glu_interleave_size);
  for (int64_t row = 0; row < rows; ++row) {
    const Rows x = input_rows<Rows>(a.input, a.input_dtype, row * kHalves * cols);
    const Rows y(a.output, a.output_dtype, row * cols);
    const float scale = a.act_scales != nullptr ? a.act_scales[row] : 1.0F;
    for (int64_t start = 0; start < cols; start += block) {
      for_packs(block, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
        const int64_t at = kHalves * start + i;
        const auto first = biased(x, a.bias, at, count);
        const auto second = Op::kIsGated ? biased(x, a.bias, at + block, count) : first;
        y.put(start + i, scaled(Op::forward(a.params, first, second), scale), count);
      });
    }
  }
}

}  // namespace

extern const ActivationForwardKernels activation_forward_kernels = {
    .run = {TE_PLAIN_ACTIVATION_ROWS(forward), TE_GATED_ACTIVATION_ROWS(forward)}};

}  // namespace transformer_engine::cpu::TE_ISA
