// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// y = f(x + bias), or f(a) * b for the halves a, b of x + bias, row by row. Bytes from memory: each
// element of input and output once.
#include "cpu/activation_kernels.h"
#include "cpu/simd/activation_ops.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

template <typename Op, typename Rows>
void forward(const ActivationForwardRows& a) {
  // Rows that need not be told apart are one long row.
  const bool is_flat = !Op::kIsGated && a.bias == nullptr;
  const int64_t rows = is_flat ? 1 : a.rows;
  const int64_t cols = is_flat ? a.rows * a.cols : a.cols;
  const int64_t input_cols = Op::kIsGated ? 2 * cols : cols;
  for (int64_t row = 0; row < rows; ++row) {
    const Rows x = input_rows<Rows>(a.input, a.input_dtype, row * input_cols);
    const Rows y(a.output, a.output_dtype, row * cols);
    for_packs(cols, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
      const auto first = biased(x, a.bias, i, count);
      const auto second = Op::kIsGated ? biased(x, a.bias, cols + i, count) : first;
      y.put(i, Op::forward(a.params, first, second), count);
    });
  }
}

}  // namespace

extern const ActivationForwardKernels activation_forward_kernels = {
    .run = TE_ACTIVATION_TABLE(forward)};

}  // namespace transformer_engine::cpu::TE_ISA
