// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One row of logits. The statistics go through it once, chunk by chunk: the largest logit so far,
// the sum of exponentials relative to it, brought to the new largest one with every chunk, and the
// sum of the logits.
#include "cpu/cross_entropy_kernels.h"

#include "cpu/simd/rows.h"
#include "cpu/simd/vec_math.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// e^x of one number, as the vectors compute it.
TE_INLINE float exp_of(float x) {
  float result;
  store(&result, exp(set1(x)), 1);
  return result;
}

// The largest number, NaN skipped, and the sum.
template <typename Rows>
TE_INLINE float largest_and_total(const Rows& x, int64_t count, float* total) {
  Vf largest[kRowLanes / kWidth];
#pragma GCC unroll 16
  for (Vf& part : largest) {
    part = set1(kMinusInfinity);
  }
  LaneSum<kRowLanes> sum;
  for_lanes<kRowLanes>(count, [&](int64_t i, int part, auto lanes) TE_INLINE_LAMBDA {
    const Vf value = x.get(i, lanes);
    sum.part[part] += value;
    if constexpr (sizeof(lanes) == sizeof(int64_t)) {  // some lanes
      largest[part] = max(select(first_lanes(lanes), value, set1(kMinusInfinity)), largest[part]);
    } else {
      largest[part] = max(value, largest[part]);
    }
  });
#pragma GCC unroll 16
  for (const Vf& part : largest) {
    largest[0] = max(part, largest[0]);
  }
  *total += sum.total();
  return reduce_max(largest[0]);
}

template <typename Rows>
TE_INLINE float sum_of_exponentials(const Rows& x, int64_t count, float largest, float* scratch) {
  for_packs(count, [&](int64_t i, auto lanes) TE_INLINE_LAMBDA {
    using V = decltype(x.get(i, lanes));
    store(scratch + i, exp(x.get(i, lanes) - splat<V>(largest)), lanes);
  });
  LaneSum<kRowLanes> sum;
  for_lanes<kRowLanes>(count, [&](int64_t i, int part, auto lanes) TE_INLINE_LAMBDA {
    sum.part[part] += load(static_cast<const float*>(scratch) + i, lanes);
  });
  return sum.total();
}

template <typename T>
void statistics(CrossEntropyStatisticsRow& row) {
  float largest = kMinusInfinity;
  float sum = 0.0F;
  float total = 0.0F;
  for (int64_t begin = 0; begin < row.columns; begin += kCrossEntropyChunk) {
    const int64_t left = row.columns - begin;
    const int64_t count = left < kCrossEntropyChunk ? left : kCrossEntropyChunk;
    const auto x = input_rows<RowsOf<T>>(row.input, DType::kFloat32, begin);
    const float of_chunk = largest_and_total(x, count, &total);
    if (of_chunk > largest) {
      sum = sum == 0.0F ? 0.0F : sum * exp_of(largest - of_chunk);
      largest = of_chunk;
    }
    // Nothing but -Inf (and NaN, which must not be lost) so far: relative to 0.
    sum += sum_of_exponentials(x, count, largest == kMinusInfinity ? 0.0F : largest, row.scratch);
  }
  row.largest = largest == kMinusInfinity ? 0.0F : largest;
  row.sum = sum;
  row.total = total;
}

template <typename T>
void gradient(const CrossEntropyGradientRow& row) {
  const auto x = input_rows<RowsOf<T>>(row.input, DType::kFloat32, 0);
  const RowsOf<T> dx(row.grad_input, DType::kFloat32, 0);
  for_packs(row.columns, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    using V = decltype(x.get(i, count));
    const V e = exp(x.get(i, count) - splat<V>(row.largest));
    const V share = fma(e, splat<V>(row.reciprocal), splat<V>(-row.smoothed));
    dx.put(i, share * splat<V>(row.gradient), count);
  });
}

}  // namespace

extern const CrossEntropyKernels cross_entropy_kernels = {
    .statistics = {statistics<float>, statistics<Bf16>, statistics<Fp16>},
    .gradient = {gradient<float>, gradient<Bf16>, gradient<Fp16>},
};

}  // namespace transformer_engine::cpu::TE_ISA
