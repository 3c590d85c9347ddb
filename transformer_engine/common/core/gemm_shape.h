// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The logical sizes of a GEMM, read through the operands' layout flags.
#pragma once

#include <transformer_engine/gemm.h>

namespace transformer_engine {

struct GemmShape {
  int64_t m, n, k;
};

// Rows of op(A) or op(B): m or n.
inline int64_t operand_rows(const GemmOperand& operand) {
  return operand.is_transposed ? operand.matrix.cols : operand.matrix.rows;
}

inline int64_t operand_depth(const GemmOperand& operand) {
  return operand.is_transposed ? operand.matrix.rows : operand.matrix.cols;
}

inline GemmShape gemm_shape(const GemmArgs& args) {
  return {operand_rows(args.a), operand_rows(args.b), operand_depth(args.a)};
}

// What the accumulated products are multiplied by; reads host memory.
inline float gemm_alpha(const GemmArgs& args) {
  const float a = args.a.scale_inv == nullptr ? 1.0F : *args.a.scale_inv;
  const float b = args.b.scale_inv == nullptr ? 1.0F : *args.b.scale_inv;
  return a * b;
}

}  // namespace transformer_engine
