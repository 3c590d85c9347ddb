// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/gemm.h"

#include <cmath>
#include <vector>

#include "core/gemm_shape.h"
#include "numerics/half.h"
#include "numerics/minifloat.h"

namespace transformer_engine::reference {

namespace {

float read(const TensorView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kFloat16:
      return numerics::float_from_fp16(static_cast<const uint16_t*>(view.data)[index]);
    case DType::kBFloat16:
      return numerics::float_from_bf16(static_cast<const uint16_t*>(view.data)[index]);
    case DType::kFloat8E4M3:
      return numerics::decode<numerics::E4M3>(static_cast<const uint8_t*>(view.data)[index]);
    case DType::kFloat8E5M2:
      return numerics::decode<numerics::E5M2>(static_cast<const uint8_t*>(view.data)[index]);
    default:
      return static_cast<const float*>(view.data)[index];
  }
}

void write(const TensorView& view, int64_t index, float value) {
  switch (view.dtype) {
    case DType::kFloat16:
      static_cast<uint16_t*>(view.data)[index] = numerics::fp16_from_float(value);
      break;
    case DType::kBFloat16:
      static_cast<uint16_t*>(view.data)[index] = numerics::bf16_from_float(value);
      break;
    default:
      static_cast<float*>(view.data)[index] = value;
  }
}

// op(operand) as [rows, k] doubles.
std::vector<double> widen(const GemmOperand& operand) {
  const int64_t rows = operand_rows(operand);
  const int64_t depth = operand_depth(operand);
  std::vector<double> wide(static_cast<size_t>(rows * depth));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < depth; ++i) {
      const int64_t index = operand.is_transposed ? i * rows + row : row * depth + i;
      wide[static_cast<size_t>(row * depth + i)] = read(operand.matrix, index);
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
    write(args.pre_epilogue, index, value);
  }
  if (args.epilogue == GemmEpilogue::kGELU) {
    value = gelu(value);
  }
  if (args.accumulate) {
    value += read(args.d, index);
  }
  write(args.d, index, value);
}

}  // namespace

void gemm(const GemmArgs& args) {
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
