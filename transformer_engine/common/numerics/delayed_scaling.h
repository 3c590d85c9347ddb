// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Delayed scaling, end of a step, for one tensor: one column of the amax history, whose row 0
// collects the current step and whose rows 1 (oldest) to length - 1 (newest) hold past steps.
#pragma once

#include "numerics/scale.h"

namespace transformer_engine::numerics {

struct DelayedScaling {
  float numerator;   // delayed_scaling_numerator(fp8_max, margin)
  bool most_recent;  // scale by the last step's amax instead of the history's maximum
};

// The amax of this step: the reduced one, or the local one where the reduction saw nothing.
TE_NUMERIC float step_amax(float reduced, float local) { return reduced != 0.0F ? reduced : local; }

// Updates the column history[0], history[stride], ... of `length` rows; returns the new scale.
// A step with amax 0 leaves everything as it is. NaN rows are skipped by the maximum; the
// scale stays where the chosen amax is NaN or infinite.
TE_NUMERIC float update_delayed_scaling(float* history, int64_t length, int64_t stride, float amax,
                                        float old_scale, const DelayedScaling& rule) {
  if (amax == 0.0F) {
    return old_scale;
  }
  float largest = amax;
  for (int64_t row = 1; row < length; ++row) {
    const float past = history[row * stride];
    largest = max_skip_nan(largest, past);
    if (row > 1) {
      history[(row - 1) * stride] = past;
    }
  }
  history[(length - 1) * stride] = amax;
  history[0] = 0.0F;  // after the line above: a history of one row only collects
  return delayed_scaling_scale(rule.most_recent ? amax : largest, rule.numerator, old_scale);
}

}  // namespace transformer_engine::numerics
