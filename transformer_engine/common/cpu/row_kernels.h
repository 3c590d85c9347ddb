// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of small kernels on rows that several op families share.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/isa.h"

namespace transformer_engine::cpu {

// output[c] = parts[0, c] + parts[1, c] + ..., in this order from 0, rounded once.
struct RowTotal {
  const float* parts;  // [part_count, count], rows `stride` apart
  int64_t part_count;
  int64_t stride;
  void* output;  // [count] FP32, BF16 or FP16
  DType dtype;
  int64_t count;
};

struct RowKernels {
  // output[i] = input[i] + addend, FP32; input is FP32, BF16 or FP16.
  void (*widen)(const void* input, DType dtype, float addend, float* output, int64_t count);
  // sums[c] += input[0, c] + input[1, c] + ..., in this order.
  void (*add_rows)(const void* input, DType dtype, int64_t rows, int64_t cols, float* sums);
  void (*total)(const RowTotal& sum);
};

TE_DECLARE_CPU_KERNELS(RowKernels, row_kernels)

}  // namespace transformer_engine::cpu
