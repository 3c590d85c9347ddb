// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// dx = dy * f'(x + bias), row by row; the FP32 value before rounding is added to the bias gradient.
// Bytes from memory: each element of grad_output, input and grad_input once.
#include "cpu/activation_kernels.h"
#include "cpu/simd/activation_ops.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

template <typename Rows, typename V, typename Count>
TE_INLINE void put_gradient(const Rows& dx, float* bias_sum, int64_t i, V gradient, Count count) {
  dx.put(i, gradient, count);
  if (bias_sum != nullptr) {
    store(bias_sum + i, load(bias_sum + i, count) + gradient, count);
  }
}

template <typename Op, typename Rows>
void backward(const ActivationBackwardRows& a) {
  // Rows that need not be told apart are one long row.
  const bool is_flat = !Op::kIsGated && a.bias == nullptr && a.bias_sum == nullptr;
  const int64_t rows = is_flat ? 1 : a.rows;
  const int64_t cols = is_flat ? a.rows * a.cols : a.cols;
  const int64_t input_cols = Op::kIsGated ? 2 * cols : cols;
  for (int64_t row = 0; row < rows; ++row) {
    const Rows dy = input_rows<Rows>(a.grad_output, a.grad_output_dtype, row * cols);
    const Rows x = input_rows<Rows>(a.input, a.input_dtype, row * input_cols);
    const Rows dx(a.grad_input, a.grad_input_dtype, row * input_cols);
    for_packs(cols, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
      const auto first = biased(x, a.bias, i, count);
      const auto second = Op::kIsGated ? biased(x, a.bias, cols + i, count) : first;
      auto first_gradient = first;  // of the right type; backward() assigns both
      auto second_gradient = first;
      Op::backward(a.params, first, second, dy.get(i, count), &first_gradient, &second_gradient);
      put_gradient(dx, a.bias_sum, i, first_gradient, count);
      if constexpr (Op::kIsGated) {
        put_gradient(dx, a.bias_sum, cols + i, second_gradient, count);
      }
    });
  }
}

}  // namespace

extern const ActivationBackwardKernels activation_backward_kernels = {
    .run = TE_ACTIVATION_TABLE(backward)};

}  // namespace transformer_engine::cpu::TE_ISA
