// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/gemm.h"

#include <cmath>
#include <vector>

#include "core/gemm_shape.h"
#include "numerics/gemm_alpha.h"
#include "reference/block_scaling.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

float read(const TensorView& view, int64_t index) {
  return is_fp8(view.dtype) ? decode_fp8(view.dtype, static_cast<const uint8_t*>(view.data)[index])
                            : load_float(view, index);
}

// Element (row, col) as stored, without what scales the whole operand.
float element(const GemmOperand& operand, int64_t row, int64_t col) {
  const BlockScales& scales = operand.scales;
  if (!scales.is_wanted()) {
    return read(operand.matrix, row * operand.matrix.cols + col);
  }
  BlockScaledMatrix matrix = {operand.matrix, scales};
  float amax_of_scale_one = 6.0F * scales.e4m3_max;
  if (!scales.is_row_scaled) {
    matrix.scales.amax = &amax_of_scale_one;
  }
  return load_dequantized(matrix, row, col);
}

// op(operand) as [rows, k] doubles.
std::vector<double> widen(const GemmOperand& operand) {
  const int64_t rows = operand_rows(operand);
  const int64_t depth = operand_depth(operand);
  std::vector<double> wide(static_cast<size_t>(rows * depth));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < depth; ++i) {
      wide[static_cast<size_t>(row * depth + i)] =
          operand.is_transposed ? element(operand, i, row) : element(operand, row, i);
    }
  }
  return wide;
}

float gelu(float x) {
  const double wide = x;
  const double inner = wide * (0.79788456 + 0.03567741 * wide * wide);
  return static_cast<float>(wide * (0.5 + 0.5 * std::tanh(inner)));
}

void finish(const GemmArgs& args, int64_t index, int64_t column, float value) {
  if (args.bias.is_wanted()) {
    value += read(args.bias, column);
  }
  if (args.pre_epilogue.is_wanted()) {
    store_float(args.pre_epilogue, index, value);
  }
  if (args.epilogue == GemmEpilogue::kGELU) {
    value = gelu(value);
  }
  if (args.accumulate) {
    value += read(args.d, index);
  }
  store_float(args.d, index, value);
}

}  // namespace

void gemm(const GemmArgs& args, const Context& /*context*/) {
  const auto [m, n, k] = gemm_shape(args);
  const std::vector<double> a = widen(args.a);
  const std::vector<double> b = widen(args.b);
  const double alpha = gemm_alpha(args);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0.0;
      for (int64_t i = 0; i < k; ++i) {
        sum += a[static_cast<size_t>(row * k + i)] * b[static_cast<size_t>(column * k + i)];
      }
      finish(args, row * n + column, column, static_cast<float>(sum * alpha));
    }
  }
}

}  // namespace transformer_engine::reference
