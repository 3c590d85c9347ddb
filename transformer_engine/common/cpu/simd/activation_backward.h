// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// dx = scale of the row * dy * f'(x + bias), row by row; the FP32 value before rounding is added to
// the bias gradient. The gradient of the scale is the sum of dy * f(x + bias) over the row.
// Bytes from memory: each element of grad_output, input and grad_input once.
#pragma once

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

// LaneSum in memory, where packs of any width find their lanes: element i of a block of columns
// goes to lane i modulo kRowLanes.
struct LanesInMemory {
  alignas(64) float lanes[kRowLanes] = {};

  template <typename V, typename Count>
  TE_INLINE void add_product(int64_t i, V a, V b, Count count) {
    float* where = lanes + (i & (kRowLanes - 1));
    store(where, fma(a, b, load(static_cast<const float*>(where), count)), count);
  }
  float total() const {
    LaneSum<kRowLanes> sum;
    for (int part = 0; part < LaneSum<kRowLanes>::kParts; ++part) {
      sum.part[part] = load(lanes + part * kWidth);
    }
    return sum.total();
  }
};

template <typename Op, typename Rows>
void backward(const ActivationBackwardRows& a) {
  // Rows that need not be told apart are one long row.
  const bool is_flat = !Op::kIsGated && a.bias == nullptr && a.bias_sum == nullptr &&
                       a.act_scales == nullptr && a.grad_act_scales == nullptr;
  const int64_t rows = is_flat ? 1 : a.rows;
  const int64_t cols = is_flat ? a.rows * a.cols : a.cols;
  constexpr int kHalves = Op::kIsGated ? 2 : 1;
  const int64_t block = block_cols<Op>(cols, a.glu_interleave_size);
  for (int64_t row = 0; row < rows; ++row) {
    const Rows dy = input_rows<Rows>(a.grad_output, a.grad_output_dtype, row * cols);
    const Rows x = input_rows<Rows>(a.input, a.input_dtype, row * kHalves * cols);
    const Rows dx(a.grad_input, a.grad_input_dtype, row * kHalves * cols);
    const float scale = a.act_scales != nullptr ? a.act_scales[row] : 1.0F;
    LanesInMemory scale_gradient;
    for (int64_t start = 0; start < cols; start += block) {
      for_packs(block, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
        const int64_t at = kHalves * start + i;
        const auto first = biased(x, a.bias, at, count);
        const auto second = Op::kIsGated ? biased(x, a.bias, at + block, count) : first;
        const auto gradient = dy.get(start + i, count);
        auto first_gradient = first;  // of the right type; backward() assigns both
        auto second_gradient = first;
        const auto y = Op::backward(a.params, first, second, scaled(gradient, scale),
                                    &first_gradient, &second_gradient);
        put_gradient(dx, a.bias_sum, at, first_gradient, count);
        if constexpr (Op::kIsGated) {
          put_gradient(dx, a.bias_sum, at + block, second_gradient, count);
        }
        if (a.grad_act_scales != nullptr) {
          scale_gradient.add_product(i, gradient, y, count);
        }
      });
    }
    if (a.grad_act_scales != nullptr) {
      a.grad_act_scales[row] = scale_gradient.total();
    }
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
