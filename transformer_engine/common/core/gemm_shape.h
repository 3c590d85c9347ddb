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

// Whether every element is a BF16 number, apart from what scales the whole operand.
inline bool is_exact_in_bf16(const GemmOperand& operand) {
  const BlockScales& scales = operand.scales;
  switch (operand.matrix.dtype) {
    case DType::kBFloat16:
      return true;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return !scales.is_wanted() || scales.dtype == DType::kFloat8E8M0 || scales.are_powers_of_two;
    case DType::kFloat4E2M1:
      return !scales.is_row_scaled;
    default:
      return false;
  }
}

}  // namespace transformer_engine
