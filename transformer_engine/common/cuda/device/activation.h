// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The activations of transformer_engine/activation.h and their derivatives at one point, in FP32.
// The 13 kinds are seven functions, each with the gate that multiplies it where the kind is gated.
// All sigmoids come from e = exp(-|v|), so that neither tail cancels: sigmoid(|v|) = 1 / (1 + e),
// sigmoid(-|v|) = e / (1 + e). expf and tanhf err by an ulp each; the approximate reciprocal, of a
// number in [1, 2], by one more. NaN stays NaN; arguments that overflow give what they tend to.
#pragma once

#include <transformer_engine/activation.h>

#include "cuda/device/ptx.h"

namespace transformer_engine::cuda {

enum class ActivationFunction : int32_t {
  kGelu,
  kScaledSilu,  // x * sigmoid(alpha x): silu, qgelu
  kRelu,
  kSquaredRelu,
  kSigmoid,
  kClampedSilu,
  kTanhSigmoid,  // situglu
};

// An activation as kernels take it.
struct ActivationRule {
  ActivationFunction function;
  bool is_gated;
  float alpha;  // of kScaledSilu and kClampedSilu
  ActivationParams params;
};

inline ActivationFunction function_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kGELU:
    case ActivationKind::kGEGLU:
      return ActivationFunction::kGelu;
    case ActivationKind::kReLU:
    case ActivationKind::kReGLU:
      return ActivationFunction::kRelu;
    case ActivationKind::kSReLU:
    case ActivationKind::kSReGLU:
      return ActivationFunction::kSquaredRelu;
    case ActivationKind::kGLU:
      return ActivationFunction::kSigmoid;
    case ActivationKind::kClampedSwiGLU:
      return ActivationFunction::kClampedSilu;
    case ActivationKind::kSiTUGLU:
      return ActivationFunction::kTanhSigmoid;
    default:
      return ActivationFunction::kScaledSilu;
  }
}

inline ActivationRule activation_rule(ActivationKind kind, const ActivationParams& params) {
  constexpr float kQuickGelu = 1.702F;
  const bool is_quick = kind == ActivationKind::kQGELU || kind == ActivationKind::kQGEGLU;
  const bool is_clamped = kind == ActivationKind::kClampedSwiGLU;
  return {.function = function_of(kind),
          .is_gated = is_gated(kind),
          .alpha = is_clamped ? params.alpha
                   : is_quick ? kQuickGelu
                              : 1.0F,
          .params = params};
}

struct Point {  // f(x) and f'(x)
  float value;
  float slope;
};

struct SigmoidPair {  // sigmoid(v) and sigmoid(-v)
  float plus;
  float minus;
};

__device__ __forceinline__ SigmoidPair sigmoid_pair(float v) {
  const float e = expf(-fabsf(v));
  const float large = ptx::approximate_reciprocal(1.0F + e);
  const float small = e * large;
  return v < 0.0F ? SigmoidPair{small, large} : SigmoidPair{large, small};
}

// x * sigmoid(v) where v = v(x), given v_log_slope = x * v'(x). Where x * v' overflows, one of the
// sigmoids is 0: it is bounded, so that their product is not NaN.
__device__ __forceinline__ Point times_sigmoid(float x, float v, float v_log_slope) {
  constexpr float kBound = 1e30F;
  const SigmoidPair s = sigmoid_pair(v);
  const float bounded = fminf(fmaxf(v_log_slope, -kBound), kBound);
  return {x * s.plus, s.plus * fmaf(bounded, s.minus, 1.0F)};
}

// beta * tanh(x / beta), of slope 1 / cosh^2 = 4 e / (1 + e)^2 with e = exp(-2 |x / beta|).
__device__ __forceinline__ Point scaled_tanh(float x, float beta) {
  const float u = x / beta;
  const float e = expf(-2.0F * fabsf(u));
  const float inverse = ptx::approximate_reciprocal(1.0F + e);
  return {beta * tanhf(u), 4.0F * e * inverse * inverse};
}

template <ActivationFunction kFunction>
struct ActivationAt {
  __device__ __forceinline__ static Point value_of(const ActivationRule& rule, float x) {
    if constexpr (kFunction == ActivationFunction::kGelu) {
      // 0.5 + 0.5 * tanh(u) = sigmoid(2u).
      constexpr float kLinear = 2.0F * 0.79788456F;
      constexpr float kCubic = 2.0F * 0.03567741F;
      const float square = x * x;
      return times_sigmoid(x, x * fmaf(kCubic, square, kLinear),
                           x * fmaf(3.0F * kCubic, square, kLinear));
    } else if constexpr (kFunction == ActivationFunction::kScaledSilu) {
      return times_sigmoid(x, rule.alpha * x, rule.alpha * x);
    } else if constexpr (kFunction == ActivationFunction::kRelu) {
      return {x <= 0.0F ? 0.0F : x, x > 0.0F ? 1.0F : 0.0F};
    } else if constexpr (kFunction == ActivationFunction::kSquaredRelu) {
      return x <= 0.0F ? Point{0.0F, 0.0F} : Point{x * x, 2.0F * x};
    } else if constexpr (kFunction == ActivationFunction::kSigmoid) {
      const SigmoidPair s = sigmoid_pair(x);
      return {s.plus, s.plus * s.minus};
    } else if constexpr (kFunction == ActivationFunction::kClampedSilu) {
      const bool is_above = x > rule.params.limit;
      const float bounded = is_above ? rule.params.limit : x;
      const Point inside = times_sigmoid(bounded, rule.alpha * bounded, rule.alpha * bounded);
      return {inside.value, is_above ? 0.0F : inside.slope};
    } else {
      const Point tanh = scaled_tanh(x, rule.params.beta1);
      const SigmoidPair s = sigmoid_pair(x);
      return {tanh.value * s.plus, fmaf(tanh.value * s.plus, s.minus, tanh.slope * s.plus)};
    }
  }

  // The factor that multiplies f in a gated kind.
  __device__ __forceinline__ static Point gate_of(const ActivationRule& rule, float b) {
    if constexpr (kFunction == ActivationFunction::kClampedSilu) {
      const float limit = rule.params.limit;
      const float bounded = b > limit ? limit : b < -limit ? -limit : b;
      return {bounded + rule.params.glu_linear_offset, fabsf(b) > limit ? 0.0F : 1.0F};
    } else if constexpr (kFunction == ActivationFunction::kTanhSigmoid) {
      return scaled_tanh(b, rule.params.beta2);
    } else {
      return {b, 1.0F};
    }
  }
};

// Calls body(ActivationAt<function>{}): one branch, the same for the whole grid, for the elements
// that the body works on.
template <class Body>
__device__ __forceinline__ void for_function(ActivationFunction function, const Body& body) {
  switch (function) {
    case ActivationFunction::kGelu:
      return body(ActivationAt<ActivationFunction::kGelu>{});
    case ActivationFunction::kScaledSilu:
      return body(ActivationAt<ActivationFunction::kScaledSilu>{});
    case ActivationFunction::kRelu:
      return body(ActivationAt<ActivationFunction::kRelu>{});
    case ActivationFunction::kSquaredRelu:
      return body(ActivationAt<ActivationFunction::kSquaredRelu>{});
    case ActivationFunction::kSigmoid:
      return body(ActivationAt<ActivationFunction::kSigmoid>{});
    case ActivationFunction::kClampedSilu:
      return body(ActivationAt<ActivationFunction::kClampedSilu>{});
    default:
      return body(ActivationAt<ActivationFunction::kTanhSigmoid>{});
  }
}

}  // namespace transformer_engine::cuda
