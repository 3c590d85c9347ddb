// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Activations of the MLP. Plain ones map [rows, n] to [rows, n]. Gated ones map [rows, 2n] to
// [rows, n]: y = f(first half) * (second half). FP32 arithmetic, rounded once.
//   gelu  x*(0.5+0.5*tanh(x*(0.79788456+0.03567741*x^2)))     qgelu x*sigmoid(1.702x)     relu
//   max(x,0) srelu x>0 ? x^2 : 0                                       silu  x*sigmoid(x) glu
//   sigmoid(a)*b    geglu/qgeglu/reglu/sreglu/swiglu: gelu/qgelu/relu/srelu/silu of a, times b
//   clamped_swiglu: a'=min(a,limit), b'=clamp(b,-limit,limit)+glu_linear_offset,
//   y=a'*sigmoid(alpha*a')*b'
//   situglu: y=beta1*tanh(a/beta1)*sigmoid(a) * beta2*tanh(b/beta2)
// act_scales, where given, multiply each row of y in FP32, before the rounding.
// glu_interleave_size g: the halves of a gated input lie in alternating blocks of g columns
// (a[0:g], b[0:g], a[g:2g], ...; bias and gradients likewise); 0: all of a, then all of b.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

enum class ActivationKind : int32_t {
  kGELU = 0,
  kQGELU = 1,
  kReLU = 2,
  kSReLU = 3,
  kSiLU = 4,
  kGLU = 5,
  kGEGLU = 6,
  kQGEGLU = 7,
  kReGLU = 8,
  kSReGLU = 9,
  kSwiGLU = 10,
  kClampedSwiGLU = 11,
  kSiTUGLU = 12,
};

bool is_gated(ActivationKind kind);

struct ActivationParams {
  float limit = 7.0F;  // clamped_swiglu
  float alpha = 1.702F;
  float glu_linear_offset = 1.0F;
  float beta1 = 4.0F;  // situglu
  float beta2 = 25.0F;
};

struct ActivationForwardArgs {
  ActivationKind kind = ActivationKind::kGELU;
  ActivationParams params;
  TensorView input;   // [rows, n] or [rows, 2n], FP32, BF16 or FP16
  TensorView bias;    // [1, cols of input], added in FP32 before the activation; optional
  TensorView output;  // [rows, n]; its dtype names the rounding; data may be null if only
                      // `quantized` is wanted
  QuantizedOutput quantized;
  TensorView act_scales;  // [1, rows], FP32, BF16 or FP16; optional
  int64_t glu_interleave_size = 0;
};
void activation_forward(const ActivationForwardArgs& args, const Context& context);

// grad_input = act_scales[row] * grad_output * f'(input + bias); grad_bias = sum over rows of the
// unrounded (FP32) grad_input; grad_act_scales[row] = sum over columns of grad_output * f(input +
// bias), accumulated in FP32, rounded once; zeros for no columns.
struct ActivationBackwardArgs {
  ActivationKind kind = ActivationKind::kGELU;
  ActivationParams params;
  TensorView grad_output;  // [rows, n]
  TensorView input;        // [rows, n] or [rows, 2n], before bias and activation
  TensorView bias;         // as in forward; optional
  TensorView grad_input;   // shape of input; data may be null if only `quantized` is wanted (dtype
                           // still names the rounding)
  TensorView grad_bias;    // [1, cols of input]; optional
  QuantizedOutput quantized;   // FP8 copy of grad_input
  TensorView act_scales;       // as in forward; optional
  TensorView grad_act_scales;  // [1, rows]; optional
  int64_t glu_interleave_size = 0;
};
void activation_backward(const ActivationBackwardArgs& args, const Context& context);

// grad_bias[c] = sum over rows of grad_output[r, c], accumulated in FP32, rounded once; zeros for
// no rows. `quantized` optionally receives the FP8 copy of grad_output in the same pass.
struct BiasGradientArgs {
  TensorView grad_output;  // [rows, cols]
  TensorView grad_bias;    // [1, cols]
  QuantizedOutput quantized;
};
void bias_gradient(const BiasGradientArgs& args, const Context& context);

}  // namespace transformer_engine
