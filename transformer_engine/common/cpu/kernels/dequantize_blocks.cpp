// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Dequantization of block-scaled rows, for one thread and one instruction set (table:
// cpu/block_kernels.h): y = T(q * scale), for E2M1 T((q * scale) * tensor scale), each product
// rounded to FP32. E2M1 goes by way of E4M3, which holds its values.
//
// The scales of a run of columns are made FP32 first, once for all rows that share them; a block
// then multiplies by one of them, and blocks of one column by a vector of them.
#include "cpu/block_kernels.h"
#include "cpu/simd/block_decode.h"
#include "cpu/simd/e2m1_decode.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

using numerics::E4M3;
using numerics::E5M2;

// Columns of a run: whole blocks of 128, the scales stay in the first cache. Rows that share their
// scales are passed through faster in longer runs (4096 against 1024 columns: twice as fast).
// Scales of one row lie as far apart as the matrix is high; more than 8 of them would meet in one
// set of the first cache.
constexpr int64_t kMaxRun = 4096;
constexpr int64_t kRowRun = 1024;

// FP32 of `count` scales `stride` apart.
void decode_scales(const BlockScales& scales, int64_t first, int64_t stride, int64_t count,
                   float* out) {
  if (scales.dtype == DType::kFloat32) {
    const float* in = static_cast<const float*>(scales.data) + first;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = in[i * stride];
    }
    return;
  }
  const uint8_t* in = static_cast<const uint8_t*>(scales.data) + first;
  uint8_t dense[kMaxRun];
  if (stride != 1) {
    for (int64_t i = 0; i < count; ++i) {
      dense[i] = in[i * stride];
    }
    in = dense;
  }
  const bool is_e8m0 = scales.dtype == DType::kFloat8E8M0;
  for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
    const Vi codes = load_bytes(in + i, lanes);
    store(out + i, is_e8m0 ? decode_e8m0_lanes(codes) : decode_lanes<E4M3>(codes), lanes);
  });
}

// Columns [begin, begin + run.count) of a row.
template <typename T>
void dequantize_run(const DequantizeBlocksArgs& args, int64_t row, int64_t begin, BlockRun run) {
  const TensorView& data = args.input.data;
  const auto* bytes = static_cast<const uint8_t*>(data.data);
  T* out = static_cast<T*>(args.output.data) + row * data.cols + begin;
  if (data.dtype == DType::kFloat4E2M1) {
    const BlockScales& scales = args.input.scales;
    uint8_t codes[kMaxRun];
    e2m1_to_e4m3(bytes + row * row_size_bytes(data.dtype, data.cols) + begin / 2, codes, run.count);
    run.codes = codes;
    run.tensor = numerics::nvfp4_tensor_scale_inv(scales.amax[scales.is_row_scaled ? row : 0],
                                                  scales.e4m3_max);
    decode_run<T, E4M3, true>(run, out);
    return;
  }
  run.codes = bytes + row * data.cols + begin;
  if (data.dtype == DType::kFloat8E4M3) {
    decode_run<T, E4M3, false>(run, out);
  } else {
    decode_run<T, E5M2, false>(run, out);
  }
}

template <typename T>
void dequantize(const DequantizeBlocksArgs& args, int64_t begin, int64_t end) {
  const BlockScales& rule = args.input.scales;
  const int64_t cols = args.input.data.cols;
  const int64_t run_cols = rule.block_rows == 1 ? kRowRun : kMaxRun;
  alignas(64) float scales[kMaxRun];
  for (int64_t row = begin; row < end;) {
    const int64_t band_end = minimum((row / rule.block_rows + 1) * rule.block_rows, end);
    for (int64_t col = 0; col < cols; col += run_cols) {
      const BlockRun run{.codes = nullptr,
                         .count = minimum(run_cols, cols - col),
                         .scales = scales,
                         .block = rule.block_cols,
                         .offset = col % rule.block_cols,
                         .tensor = 1.0F};
      decode_scales(rule, rule.index(row, col), rule.col_stride,
                    ceil_divide(run.offset + run.count, run.block), scales);
      for (int64_t r = row; r < band_end; ++r) {
        dequantize_run<T>(args, r, col, run);
      }
    }
    row = band_end;
  }
}

}  // namespace

const BlockDequantizeKernels block_dequantize_kernels = {
    .run = {&dequantize<float>, &dequantize<Bf16>, &dequantize<Fp16>},
};

}  // namespace transformer_engine::cpu::TE_ISA
