// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of one row that every body of cross_entropy.h shares.
#pragma once

#include <transformer_engine/cross_entropy.h>

#include "numerics/host_device.h"

namespace transformer_engine::numerics {

TE_NUMERIC bool is_counted(const CrossEntropyTargets& targets, int64_t row) {
  return targets.ids[row] != targets.ignored;
}

// Column of the row's target among the rank's `columns`, or -1.
TE_NUMERIC int64_t target_column(const CrossEntropyTargets& targets, int64_t row, int64_t columns) {
  const int64_t id = targets.ids[row];
  return id >= targets.first && id < targets.first + columns ? id - targets.first : -1;
}

// What a row's elements are computed from in the backward:
// grad = gradient * (e^(x - largest) * reciprocal - smoothed - (1 - smoothing) [at the target]).
template <typename Real>
struct CrossEntropyGradient {
  Real gradient;  // 0: the row is ignored, and so are its logits
  Real largest;
  Real reciprocal;
  Real smoothed;
  Real at_target;
  int64_t target;  // column, or -1
  bool is_ignored;
};

template <typename Real>
TE_NUMERIC CrossEntropyGradient<Real> cross_entropy_gradient(const CrossEntropyBackwardArgs& args,
                                                             int64_t row) {
  const float* grad_output = static_cast<const float*>(args.grad_output.data);
  const float* softmax = static_cast<const float*>(args.softmax.data) + 2 * row;
  const int64_t id = args.targets.ids[row];
  const bool is_known = id >= 0 && id < args.targets.vocabulary;
  const Real weight = *static_cast<const float*>(args.weight.data);
  const Real smoothing = args.label_smoothing;
  const Real given = grad_output[args.grad_output.cols == 1 ? 0 : row];
  return {.gradient = is_known ? given * weight : Real(__builtin_nanf("")),
          .largest = softmax[0],
          .reciprocal = softmax[1],
          .smoothed = smoothing / static_cast<Real>(args.targets.vocabulary),
          .at_target = Real(1) - smoothing,
          .target = target_column(args.targets, row, args.input.cols),
          .is_ignored = !is_counted(args.targets, row)};
}

// What the loss of a row is computed from, of the whole vocabulary.
template <typename Real>
struct CrossEntropyRow {
  Real largest = 0;
  Real sum = 0;  // of e^(x - largest)
  Real target = __builtin_nanf("");
  Real total = 0;  // sum of x
};

TE_NUMERIC bool is_nan_number(float x) { return !(x == x); }

// Combines what `ranks` ranks found out about a row; `exponential` is e^x of a Real.
template <typename Real, typename Exponential>
TE_HOST_DEVICE inline CrossEntropyRow<Real> combine_ranks(const CrossEntropyLossArgs& args,
                                                          int64_t row, int64_t rows,
                                                          const Exponential& exponential) {
  const int64_t ranks = rows == 0 ? 0 : args.statistics.rows / rows;
  const float* const first =
      static_cast<const float*>(args.statistics.data) + kCrossEntropyStatistics * row;
  const int64_t step = kCrossEntropyStatistics * rows;
  CrossEntropyRow<Real> result;
  bool has_largest = false;  // a rank whose logits are all -Inf has none
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* const given = first + rank * step;
    if (given[1] != 0.0F && (!has_largest || Real(given[0]) > result.largest)) {
      result.largest = given[0];
      has_largest = true;
    }
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* const given = first + rank * step;
    if (given[1] != 0.0F) {
      result.sum += Real(given[1]) * exponential(Real(given[0]) - result.largest);
    }
    result.target = is_nan_number(given[2]) ? result.target : Real(given[2]);
    result.total += Real(given[3]);
  }
  return result;
}

// `log_sum` is the logarithm of row.sum.
template <typename Real>
TE_NUMERIC Real cross_entropy_of(const CrossEntropyRow<Real>& row, Real log_sum, Real smoothing,
                                 int64_t vocabulary) {
  const Real hard = (row.largest - row.target) + log_sum;
  if (smoothing == Real(0)) {
    return hard;  // the sum may be infinite where the loss is not
  }
  const Real spread = (row.largest - row.total / static_cast<Real>(vocabulary)) + log_sum;
  return (Real(1) - smoothing) * hard + smoothing * spread;
}

}  // namespace transformer_engine::numerics
