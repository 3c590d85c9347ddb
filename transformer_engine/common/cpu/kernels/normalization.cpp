// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm of rows. Formulas: normalization.h.
//
// Forward reads a row three times (RMSNorm twice) out of the first cache: mean, variance about
// that mean, result. E[x^2] - mean^2 in one pass is ruled out: it cancels when |mean| is large
// against the deviation. The second pass also sums the deviations, which repairs the rounding error
// of the mean (Chan, Golub, LeVeque 1983, the corrected two-pass algorithm).
//
// Backward takes kGroupRows rows at a time, so that gain and the running weight gradients are
// loaded once per group: first the two row sums and the weight gradients, then grad_input.
//
// Bytes from memory: forward 1 read + 1 write per element, backward 2 reads + 1 write.
#include "cpu/norm_kernels.h"
#include "cpu/simd/rows.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Sums per row in 16 lanes: kGroupRows rows give the independent chains. 4, 2, 1 rows need 8
// accumulators on every width.
constexpr int kGroupLanes = 16;
constexpr int kGroupRows = kWidth / 4;

TE_INLINE float inverse_deviation(float variance, float epsilon) {
  return 1.0F / __builtin_sqrtf(variance + epsilon);
}

template <typename In>
TE_INLINE float row_mean(const In& x, int64_t hidden) {
  LaneSum<kRowLanes> sum;
  for_lanes<kRowLanes>(hidden, [&](int64_t i, int part, auto count)
                                   TE_INLINE_LAMBDA { sum.part[part] += x.get(i, count); });
  return sum.total() / static_cast<float>(hidden);
}

// The biased variance; moves `mean` to the mean of the deviations from it.
template <typename In>
TE_INLINE float row_variance(const In& x, int64_t hidden, float* mean) {
  LaneSum<kRowLanes> squares, sum;
  const Vf center = set1(*mean);
  for_lanes<kRowLanes>(hidden, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
    const Vf deviation = keep(x.get(i, count) - center, count);
    squares.part[part] = fma(deviation, deviation, squares.part[part]);
    sum.part[part] += deviation;
  });
  const float shift = sum.total() / static_cast<float>(hidden);
  *mean += shift;
  const float variance = squares.total() / static_cast<float>(hidden) - shift * shift;
  return variance < 0.0F ? 0.0F : variance;  // NaN stays
}

template <typename In>
TE_INLINE float row_mean_square(const In& x, int64_t hidden) {
  LaneSum<kRowLanes> squares;
  for_lanes<kRowLanes>(hidden, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
    const Vf value = x.get(i, count);
    squares.part[part] = fma(value, value, squares.part[part]);
  });
  return squares.total() / static_cast<float>(hidden);
}

template <NormKind kKind, typename In, typename Out>
void forward(const NormForwardRows& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const In x = input_rows<In>(a.input, a.input_dtype, row * a.hidden);
    const Out y(a.output, a.output_dtype, row * a.hidden);
    float mean = 0.0F;
    float spread = 0.0F;
    if constexpr (kKind == NormKind::kLayerNorm) {
      mean = a.hidden > 0 ? row_mean(x, a.hidden) : 0.0F;
      spread = a.hidden > 0 ? row_variance(x, a.hidden, &mean) : 0.0F;
    } else {
      spread = a.hidden > 0 ? row_mean_square(x, a.hidden) : 0.0F;
    }
    const float rstd = inverse_deviation(spread, a.epsilon);
    // The next row comes from memory while this one is computed.
    const int64_t next_row = row + 1 < a.rows ? a.hidden : 0;
    for_packs(a.hidden, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
      prefetch(x, next_row + i, count);
      const auto gain = load(a.gain + i, count);
      using V = decltype(x.get(i, count));
      const V center = splat<V>(mean);
      const V scale = splat<V>(rstd);
      if constexpr (kKind == NormKind::kLayerNorm) {
        const V normalized = (x.get(i, count) - center) * scale;
        y.put(i, fma(normalized, gain, load(a.beta + i, count)), count);
      } else {
        y.put(i, x.get(i, count) * scale * gain, count);
      }
    });
    if (a.mean != nullptr) {
      a.mean[row] = mean;
    }
    if (a.rstd != nullptr) {
      a.rstd[row] = rstd;
    }
  }
}

struct RowStatistics {
  float mean;
  float rstd;
};

template <NormKind kKind, typename V>
TE_INLINE V normalize(const RowStatistics& row, V x) {
  const V rstd = splat<V>(row.rstd);
  return kKind == NormKind::kLayerNorm ? (x - splat<V>(row.mean)) * rstd : x * rstd;
}

// Sums of one row: w = grad_output * gain, and w * xhat.
struct RowSums {
  LaneSum<kGroupLanes> weighted;
  LaneSum<kGroupLanes> weighted_xhat;
};

template <NormKind kKind>
TE_INLINE RowStatistics statistics_of(const NormBackwardRows& a, int64_t row) {
  return {kKind == NormKind::kLayerNorm ? a.mean[row] : 0.0F, a.rstd[row]};
}

// First pass over rows [row, row + kRows): row sums, and the weight gradients when wanted.
template <NormKind kKind, typename Rows, int kRows, bool kWithWeights>
TE_INLINE void sum_group(const NormBackwardRows& a, int64_t row, RowSums* sums) {
  RowStatistics statistics[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    statistics[r] = statistics_of<kKind>(a, row + r);
  }
  RowSums local[kRows];
  for_lanes<kGroupLanes>(a.hidden, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
    const Vf gain = load(a.gain + i, count);
    Vf gamma_sum = kWithWeights ? load(a.gamma_sum + i, count) : zero();
    Vf beta_sum =
        kWithWeights && kKind == NormKind::kLayerNorm ? load(a.beta_sum + i, count) : zero();
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const int64_t offset = (row + r) * a.hidden;
      const Vf x = input_rows<Rows>(a.input, a.input_dtype, offset).get(i, count);
      const Vf dy = input_rows<Rows>(a.grad_output, a.grad_output_dtype, offset).get(i, count);
      const Vf xhat = normalize<kKind>(statistics[r], x);
      const Vf weighted = dy * gain;
      if constexpr (kKind == NormKind::kLayerNorm) {
        local[r].weighted.part[part] += weighted;
      }
      local[r].weighted_xhat.part[part] = fma(weighted, xhat, local[r].weighted_xhat.part[part]);
      gamma_sum = fma(dy, xhat, gamma_sum);
      beta_sum += dy;
    }
    if constexpr (kWithWeights) {
      store(a.gamma_sum + i, gamma_sum, count);
      if constexpr (kKind == NormKind::kLayerNorm) {
        store(a.beta_sum + i, beta_sum, count);
      }
    }
  });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sums[r] = local[r];
  }
}

// Second pass over one row: grad_input.
template <NormKind kKind, typename Rows>
TE_INLINE void write_grad_input(const NormBackwardRows& a, int64_t row, RowSums* sums) {
  const int64_t offset = row * a.hidden;
  const Rows x = input_rows<Rows>(a.input, a.input_dtype, offset);
  const Rows dy = input_rows<Rows>(a.grad_output, a.grad_output_dtype, offset);
  const Rows residual = input_rows<Rows>(a.grad_residual, a.grad_residual_dtype, offset);
  const Rows dx(a.grad_input, a.grad_input_dtype, offset);
  const RowStatistics statistics = statistics_of<kKind>(a, row);
  const auto hidden = static_cast<float>(a.hidden);
  const float mean_weighted = sums->weighted.total() / hidden;
  const float mean_weighted_xhat = sums->weighted_xhat.total() / hidden;
  const bool has_residual = a.grad_residual != nullptr;
  // The rows of the next group come from memory while this one is computed.
  const int64_t next_group = row + kGroupRows < a.rows ? kGroupRows * a.hidden : 0;
  for_packs(a.hidden, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    prefetch(x, next_group + i, count);
    prefetch(dy, next_group + i, count);
    using V = decltype(x.get(i, count));
    const V xhat = normalize<kKind>(statistics, x.get(i, count));
    V centered = dy.get(i, count) * load(a.gain + i, count);
    if constexpr (kKind == NormKind::kLayerNorm) {
      centered = centered - splat<V>(mean_weighted);
    }
    V gradient = fma(-xhat, splat<V>(mean_weighted_xhat), centered) * splat<V>(statistics.rstd);
    if (has_residual) {
      gradient = gradient + residual.get(i, count);
    }
    dx.put(i, gradient, count);
  });
}

template <NormKind kKind, typename Rows, int kRows, bool kWithWeights>
TE_INLINE void backward_group(const NormBackwardRows& a, int64_t row) {
  RowSums sums[kRows];
  sum_group<kKind, Rows, kRows, kWithWeights>(a, row, sums);
  if (a.grad_input != nullptr) {
    for (int r = 0; r < kRows; ++r) {
      write_grad_input<kKind, Rows>(a, row + r, &sums[r]);
    }
  }
}

template <NormKind kKind, typename Rows, bool kWithWeights>
void backward_rows(const NormBackwardRows& a) {
  int64_t row = 0;
  for (; row + kGroupRows <= a.rows; row += kGroupRows) {
    backward_group<kKind, Rows, kGroupRows, kWithWeights>(a, row);
  }
  for (; row < a.rows; ++row) {
    backward_group<kKind, Rows, 1, kWithWeights>(a, row);
  }
}

template <NormKind kKind, typename Rows>
void backward(const NormBackwardRows& a) {
  if (a.gamma_sum != nullptr) {
    backward_rows<kKind, Rows, true>(a);
  } else {
    backward_rows<kKind, Rows, false>(a);
  }
}

constexpr NormKind kLayer = NormKind::kLayerNorm;
constexpr NormKind kRms = NormKind::kRMSNorm;

}  // namespace

extern const NormKernels norm_kernels = {
    .forward = {{forward<kLayer, RowsOf<float>, RowsOf<float>>,
                 forward<kLayer, RowsOf<Bf16>, RowsOf<Bf16>>,
                 forward<kLayer, RowsOf<Fp16>, RowsOf<Fp16>>, forward<kLayer, AnyRows, AnyRows>},
                {forward<kRms, RowsOf<float>, RowsOf<float>>,
                 forward<kRms, RowsOf<Bf16>, RowsOf<Bf16>>,
                 forward<kRms, RowsOf<Fp16>, RowsOf<Fp16>>, forward<kRms, AnyRows, AnyRows>}},
    .backward = {{backward<kLayer, RowsOf<float>>, backward<kLayer, RowsOf<Bf16>>,
                  backward<kLayer, RowsOf<Fp16>>, backward<kLayer, AnyRows>},
                 {backward<kRms, RowsOf<float>>, backward<kRms, RowsOf<Bf16>>,
                  backward<kRms, RowsOf<Fp16>>, backward<kRms, AnyRows>}},
};

}  // namespace transformer_engine::cpu::TE_ISA
