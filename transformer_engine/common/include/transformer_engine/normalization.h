// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang and Sennrich 2019,
// arXiv:1910.07467) over the last axis.
//   LayerNorm: y = (x - mean) * rstd * g + beta,  rstd = 1 / sqrt(var + epsilon), var biased
//   RMSNorm:   y = x * rstd * g,                  rstd = 1 / sqrt(mean(x^2) + epsilon)
// g = gamma, or 1 + gamma (added in FP32) when zero_centered_gamma. Statistics and arithmetic are
// FP32; y is rounded once.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

enum class NormKind : int32_t { kLayerNorm = 0, kRMSNorm = 1 };

struct NormForwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  TensorView input;  // [rows, hidden] FP32, BF16 or FP16
  TensorView gamma;  // [1, hidden] FP32, BF16 or FP16 (may differ from input)
  TensorView beta;   // [1, hidden] same type as gamma; LayerNorm only
  float epsilon = 1e-5F;
  bool zero_centered_gamma = false;
  TensorView output;  // [rows, hidden] FP32, BF16 or FP16; its dtype names the rounding; data may
                      // be null if only `quantized` is wanted
  float* mean = nullptr;  // [rows], LayerNorm only; may be null
  float* rstd = nullptr;  // [rows]; may be null
  QuantizedOutput quantized;
};
void norm_forward(const NormForwardArgs& args, const Context& context);

// grad_input = rstd * (w - mean_row(w) - xhat * mean_row(w * xhat)) with w = grad_output * g
// (RMSNorm: without the first mean); grad_gamma = sum_rows(grad_output * xhat); grad_beta =
// sum_rows(grad_output). FP32 arithmetic, rounded once.
struct NormBackwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  TensorView grad_output;       // [rows, hidden]
  TensorView input;             // [rows, hidden]
  TensorView gamma;             // [1, hidden]
  const float* mean = nullptr;  // [rows], LayerNorm only
  const float* rstd = nullptr;  // [rows]
  bool zero_centered_gamma = false;
  TensorView grad_residual;  // [rows, hidden] added to grad_input before rounding; optional
  TensorView grad_input;     // [rows, hidden]; optional
  TensorView grad_gamma;     // [1, hidden]; optional
  TensorView grad_beta;      // [1, hidden]; optional
};
void norm_backward(const NormBackwardArgs& args, const Context& context);

}  // namespace transformer_engine
