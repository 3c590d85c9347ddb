// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Softmax of one row: largest visible score, exponentials and their sum, quotient. The exponent
// scale * x - largest is one fma, so that the rounding of scale * x cancels in the quotient.
// NaN in a visible score, +Inf, or nothing but -Inf gives NaN in the visible columns.
#include "cpu/softmax_kernels.h"

#include "cpu/simd/rows.h"
#include "cpu/simd/vec_math.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// `value`, with `other` in hidden lanes.
TE_INLINE Vf hide(const uint8_t* mask, int64_t i, Vf value, Vf other, AllLanes) {
  return mask != nullptr ? select(nonzero_bytes(mask + i), other, value) : value;
}
TE_INLINE Vf hide(const uint8_t* mask, int64_t i, Vf value, Vf other, int64_t count) {
  value = select(first_lanes(count), value, other);
  return mask != nullptr ? select(nonzero_bytes(mask + i, count), other, value) : value;
}

TE_INLINE Pack hide(const uint8_t* mask, int64_t i, Pack value, Pack other, PackLanes) {
  return mask != nullptr ? select(nonzero_bytes_pack(mask + i), other, value) : value;
}

template <typename Rows>
TE_INLINE float largest_score(const SoftmaxForwardRow& row, const Rows& x) {
  const Vf lowest = set1(kMinusInfinity);
  const Vf scale = set1(row.scale);
  Vf largest[kRowLanes / kWidth];
#pragma GCC unroll 16
  for (Vf& part : largest) {
    part = lowest;
  }
  for_lanes<kRowLanes>(row.visible, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
    const Vf score = x.get(i, count) * scale;
    largest[part] = max(hide(row.mask, i, score, lowest, count), largest[part]);
  });
#pragma GCC unroll 16
  for (const Vf& part : largest) {
    largest[0] = max(part, largest[0]);
  }
  return reduce_max(largest[0]);
}

// e^(scale * x - largest) into the scratch row, 0 in hidden columns; returns the sum.
template <typename Rows>
TE_INLINE float exponentials(const SoftmaxForwardRow& row, const Rows& x, float largest) {
  for_packs(row.visible, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    using V = decltype(x.get(i, count));
    const V e = exp(fma(x.get(i, count), splat<V>(row.scale), splat<V>(-largest)));
    store(row.scratch + i, hide(row.mask, i, e, splat<V>(0.0F), count), count);
  });
  LaneSum<kRowLanes> sum;
  for_lanes<kRowLanes>(row.visible, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
    sum.part[part] += load(static_cast<const float*>(row.scratch) + i, count);
  });
  return sum.total();
}

bool has_visible(const SoftmaxForwardRow& row) {
  if (row.mask == nullptr) {
    return row.visible > 0;
  }
  for (int64_t i = 0; i < row.visible; ++i) {
    if (row.mask[i] == 0) {
      return true;
    }
  }
  return false;
}

template <typename Rows>
void forward(const SoftmaxForwardRow& row) {
  const Rows x = input_rows<Rows>(row.input, row.input_dtype, 0);
  const Rows y(row.output, row.output_dtype, 0);
  int64_t written = 0;
  if (has_visible(row)) {
    const float inverse = 1.0F / exponentials(row, x, largest_score(row, x));
    for_packs(row.visible, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
      const auto e = load(static_cast<const float*>(row.scratch) + i, count);
      using V = decltype(x.get(i, count));
      // Hidden columns stay 0 where the sum is NaN.
      y.put(i, hide(row.mask, i, e * splat<V>(inverse), splat<V>(0.0F), count), count);
    });
    written = row.visible;
  }
  const Rows rest(row.output, row.output_dtype, written);
  for_packs(row.keys - written, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    rest.put(i, splat<decltype(x.get(i, count))>(0.0F), count);
  });
}

template <typename Rows>
void backward(const SoftmaxBackwardRow& row) {
  const Rows dy = input_rows<Rows>(row.grad_output, row.grad_output_dtype, 0);
  const Rows y = input_rows<Rows>(row.output, row.output_dtype, 0);
  const Rows dx(row.grad_input, row.grad_input_dtype, 0);
  LaneSum<kRowLanes> sum;
  for_lanes<kRowLanes>(row.keys, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
    sum.part[part] = fma(dy.get(i, count), y.get(i, count), sum.part[part]);
  });
  const float mean = sum.total();
  for_packs(row.keys, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    using V = decltype(y.get(i, count));
    const V difference = dy.get(i, count) - splat<V>(mean);
    dx.put(i, splat<V>(row.scale) * difference * y.get(i, count), count);
  });
}

}  // namespace

extern const SoftmaxKernels softmax_kernels = {
    .forward = {forward<RowsOf<float>>, forward<RowsOf<Bf16>>, forward<RowsOf<Fp16>>,
                forward<AnyRows>},
    .backward = {backward<RowsOf<float>>, backward<RowsOf<Bf16>>, backward<RowsOf<Fp16>>,
                 backward<AnyRows>},
};

}  // namespace transformer_engine::cpu::TE_ISA
