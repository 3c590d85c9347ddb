// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_kernels.h"

#include "cpu/simd/rows.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Rows read side by side by add_rows: the sums are loaded and stored once per group, and 8 streams
// stay within what hardware prefetchers follow.
constexpr int kGroupRows = 8;

void widen(const void* input, DType dtype, float addend, float* output, int64_t count) {
  const AnyRows x = input_rows<AnyRows>(input, dtype, 0);
  const Vf offset = set1(addend);
  for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
    store(output + i, x.get(i, lanes) + offset, lanes);
  });
}

template <typename Rows, int kRows>
TE_INLINE void add_group(const void* input, DType dtype, int64_t offset, int64_t cols,
                         float* sums) {
  for_lanes<kWidth>(cols, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
    Vf sum = load(sums + i, count);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sum += input_rows<Rows>(input, dtype, offset + r * cols).get(i, count);
    }
    store(sums + i, sum, count);
  });
}

template <typename Rows>
void add_rows_of(const void* input, DType dtype, int64_t rows, int64_t cols, float* sums) {
  int64_t row = 0;
  for (; row + kGroupRows <= rows; row += kGroupRows) {
    add_group<Rows, kGroupRows>(input, dtype, row * cols, cols, sums);
  }
  for (; row < rows; ++row) {
    add_group<Rows, 1>(input, dtype, row * cols, cols, sums);
  }
}

void add_rows(const void* input, DType dtype, int64_t rows, int64_t cols, float* sums) {
  if (dtype == DType::kFloat32) {
    add_rows_of<RowsOf<float>>(input, dtype, rows, cols, sums);
  } else if (dtype == DType::kBFloat16) {
    add_rows_of<RowsOf<Bf16>>(input, dtype, rows, cols, sums);
  } else {
    add_rows_of<RowsOf<Fp16>>(input, dtype, rows, cols, sums);
  }
}

void total(const RowTotal& a) {
  const AnyRows out(a.output, a.dtype, 0);
  for_lanes<kWidth>(a.count, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
    Vf sum = zero();
    for (int64_t part = 0; part < a.part_count; ++part) {
      sum += load(a.parts + part * a.stride + i, count);
    }
    out.put(i, sum, count);
  });
}

}  // namespace

extern const RowKernels row_kernels = {.widen = widen, .add_rows = add_rows, .total = total};

}  // namespace transformer_engine::cpu::TE_ISA
