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

template <typename Rows>
TE_INLINE float largest_score(const SoftmaxForwardRow& row, const Rows& x) {
  const Vf scale = set1(row.scale);
  Vf largest = set1(kMinusInfinity);
  for_lanes<kWidth>(row.visible, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
    const Vf score = x.get(i, count) * scale;
    largest = max(hide(row.mask, i, score, set1(kMinusInfinity), count), largest);
  });
  return reduce_max(largest);
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
    const Vf offset = -set1(largest_score(row, x));
    const Vf scale = set1(row.scale);
    LaneSum<kRowLanes> sum;
    for_lanes<kRowLanes>(row.visible, [&](int64_t i, int part, auto count) TE_INLINE_LAMBDA {
      const Vf e = exp(fma(x.get(i, count), scale, offset));
      const Vf visible = hide(row.mask, i, e, zero(), count);
      store(row.scratch + i, visible, count);
      sum.part[part] += visible;
    });
    const Vf inverse = set1(1.0F / sum.total());
    for_lanes<kWidth>(row.visible, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
      // Hidden columns stay 0 where the sum is NaN.
      y.put(i, hide(row.mask, i, load(row.scratch + i, count) * inverse, zero(), count), count);
    });
    written = row.visible;
  }
  const Rows rest(row.output, row.output_dtype, written);
  for_lanes<kWidth>(row.keys - written, [&](int64_t i, int, auto count)
                                            TE_INLINE_LAMBDA { rest.put(i, zero(), count); });
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
  const Vf mean = set1(sum.total());
  const Vf scale = set1(row.scale);
  for_lanes<kWidth>(row.keys, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
    dx.put(i, scale * (dy.get(i, count) - mean) * y.get(i, count), count);
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
