// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Table of the cast kernels: one thread's share of an op. Any size, alignment and stride; in and
// out do not overlap. `stream` asks for stores that bypass the caches where the instruction set
// has them and the destination is aligned to cache lines.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/isa.h"

namespace transformer_engine::cpu {

struct QuantizeTile {
  const void* input;  // rows of FP32, BF16 or FP16
  int64_t input_stride;
  uint8_t* output;  // rows of codes
  int64_t output_stride;
  int64_t rows;
  int64_t cols;
  float scale;
  bool stream;
};

struct DequantizeRun {
  const uint8_t* input;  // [numel] codes
  void* output;          // [numel] FP32, BF16 or FP16
  int64_t numel;
  float scale_inv;
  bool stream;
};

struct TransposeTile {
  const uint8_t* input;  // [rows, cols]
  int64_t input_stride;
  uint8_t* output;  // [cols, rows]
  int64_t output_stride;
  int64_t rows;
  int64_t cols;
  bool stream;
};

struct CastKernels {
  // First index: 0 FP32, 1 BF16, 2 FP16; second: 0 E4M3, 1 E5M2.
  // quantize and amax return max |input|, NaN skipped.
  float (*quantize[3][2])(const QuantizeTile& tile);
  void (*dequantize[3][2])(const DequantizeRun& run);
  float (*amax[3])(const void* input, int64_t numel);
  void (*transpose)(const TransposeTile& tile);
};

TE_DECLARE_CPU_KERNELS(CastKernels, cast_kernels)

}  // namespace transformer_engine::cpu
