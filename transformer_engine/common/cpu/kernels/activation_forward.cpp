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
  const int64_t input_cols = Op::kIsGated ? 2 * a.cols : a.cols;
  for (int64_t row = 0; row < a.rows; ++row) {
    const Rows x = input_rows<Rows>(a.input, a.input_dtype, row * input_cols);
    const Rows y(a.output, a.output_dtype, row * a.cols);
    for_lanes<kWidth>(a.cols, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
      const Vf first = biased(x, a.bias, i, count);
      const Vf second = Op::kIsGated ? biased(x, a.bias, a.cols + i, count) : zero();
      y.put(i, Op::forward(a.params, first, second), count);
    });
  }
}

}  // namespace

extern const ActivationForwardKernels activation_forward_kernels = {
    .run = TE_ACTIVATION_TABLE(forward)};

}  // namespace transformer_engine::cpu::TE_ISA
