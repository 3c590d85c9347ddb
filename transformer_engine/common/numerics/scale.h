// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scale rules. `scale` multiplies to quantize, `scale_inv` to dequantize. amax = max |x| with NaN
// values skipped.
#pragma once

#include "numerics/bits.h"
#include "numerics/e8m0.h"

namespace transformer_engine::numerics {

// The larger one; a NaN loses against a number.
TE_NUMERIC float max_skip_nan(float a, float b) { return (is_nan(a) || a < b) ? b : a; }

TE_NUMERIC float inverse_scale(float scale) { return 1.0F / scale; }

// Whether scaling to this amax means anything: not for 0, infinity and NaN.
TE_NUMERIC bool is_usable_amax(float amax) { return amax > 0.0F && is_finite(amax); }

// numerator / amax for a usable amax, `largest` where that overflows.
TE_NUMERIC float saturating_scale(float numerator, float amax, float largest = kFloatMax) {
  const float scale = numerator / amax;
  return is_finite(scale) ? scale : largest;
}

// Rounded toward zero to a power of two: the mantissa is cleared.
TE_NUMERIC float floor_to_power_of_two(float value) {
  return float_of_bits(bits_of_float(value) & ~kFloatMantissaBits);
}

struct CurrentScaling {
  float fp8_max;              // largest finite value of the format
  float epsilon;              // amax is raised to it
  bool power_of_two;          // whether the scale is rounded toward zero to a power of two
  float largest = kFloatMax;  // the scale where the quotient overflows
};

// Current scaling, of a tensor or of a block: fp8_max / max(amax, epsilon), 1 for an unusable amax.
TE_NUMERIC float current_scaling_scale(float amax, const CurrentScaling& rule) {
  const float raised = amax < rule.epsilon ? rule.epsilon : amax;
  if (!is_usable_amax(raised)) {
    return 1.0F;
  }
  const float scale = saturating_scale(rule.fp8_max, raised, rule.largest);
  return rule.power_of_two ? floor_to_power_of_two(scale) : scale;
}

// Delayed scaling's numerator fp8_max * 2^-margin.
TE_HOST_DEVICE inline float delayed_scaling_numerator(float fp8_max, float margin) {
  return fp8_max * __builtin_exp2f(-margin);
}

// Delayed scaling: numerator / amax, the old scale for an unusable amax.
TE_NUMERIC float delayed_scaling_scale(float amax, float numerator, float old_scale) {
  return is_usable_amax(amax) ? saturating_scale(numerator, amax) : old_scale;
}

// Block scaling with E8M0: the power of two that brings amax to at most fp8_max. 1 / fp8_max is
// rounded to FP32 before it meets amax.
TE_NUMERIC uint8_t e8m0_from_amax(float amax, float fp8_max) {
  return encode_e8m0_round_up(amax * (1.0F / fp8_max));
}

// Second level of NVFP4: what (element * block scale) is multiplied by to dequantize.
TE_NUMERIC float nvfp4_tensor_scale_inv(float amax, float e4m3_max) {
  return amax / (6.0F * e4m3_max);
}

}  // namespace transformer_engine::numerics
