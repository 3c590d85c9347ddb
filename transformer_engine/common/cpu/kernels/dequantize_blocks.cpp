// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Dequantization of block-scaled rows, for one thread and one instruction set (table:
// cpu/block_kernels.h): y = T(q * scale), for E2M1 T((q * scale) * tensor scale), each product
// rounded to FP32.
//
// The scales of a run of columns are laid out one per element, once for all rows that share them:
// so every block size and layout takes the same way.
#include "cpu/block_kernels.h"
#include "cpu/simd/e2m1_decode.h"
#include "cpu/simd/fp8.h"
#include "cpu/simd/rows.h"
#include "numerics/e8m0.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

using numerics::E4M3;
using numerics::E5M2;

// Scales, codes and results of a run stay in the first cache; whole blocks of 128.
constexpr int64_t kRun = 1024;

int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

TE_INLINE float scale_at(const BlockScales& scales, int64_t index) {
  switch (scales.dtype) {
    case DType::kFloat8E8M0:
      return numerics::decode_e8m0(static_cast<const uint8_t*>(scales.data)[index]);
    case DType::kFloat8E4M3:
      return numerics::decode<E4M3>(static_cast<const uint8_t*>(scales.data)[index]);
    default:
      return static_cast<const float*>(scales.data)[index];
  }
}

// The scale of each element of columns [begin, end) of a row.
void spread_scales(const BlockScales& scales, int64_t row, int64_t begin, int64_t end,
                   float* spread) {
  const int64_t base = row / scales.block_rows * scales.row_stride;
  for (int64_t col = begin; col < end;) {
    const int64_t block = col / scales.block_cols;
    const int64_t block_end = minimum((block + 1) * scales.block_cols, end);
    const float scale = scale_at(scales, base + block * scales.col_stride);
    for (; col < block_end; ++col) {
      spread[col - begin] = scale;
    }
  }
}

TE_INLINE Vi load_bytes(const uint8_t* p, AllLanes) { return load_bytes(p); }

// kTensor: there is a second level of scale.
template <typename T, typename Format, bool kTensor>
TE_INLINE void decode_run(const uint8_t* codes, const float* scales, float tensor, T* out,
                          int64_t count) {
  const Vf second = set1(tensor);
  for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
    Vf value = decode_lanes<Format>(load_bytes(codes + i, lanes)) * load(scales + i, lanes);
    if constexpr (kTensor) {
      value *= second;
    }
    store(out + i, value, lanes);
  });
}

template <typename T>
void dequantize_run(const DequantizeBlocksArgs& args, int64_t row, int64_t begin, int64_t end,
                    const float* scales) {
  const TensorView& data = args.input.data;
  const auto* bytes = static_cast<const uint8_t*>(data.data);
  T* out = static_cast<T*>(args.output.data) + row * data.cols + begin;
  const int64_t count = end - begin;
  if (data.dtype == DType::kFloat8E4M3) {
    decode_run<T, E4M3, false>(bytes + row * data.cols + begin, scales, 1.0F, out, count);
  } else if (data.dtype == DType::kFloat8E5M2) {
    decode_run<T, E5M2, false>(bytes + row * data.cols + begin, scales, 1.0F, out, count);
  } else {
    const BlockScales& rule = args.input.scales;
    const float amax = rule.amax[rule.is_row_scaled ? row : 0];
    uint8_t codes[kRun];
    e2m1_to_e4m3(bytes + row * e2m1_row_bytes(data.cols) + begin / 2, codes, count);
    decode_run<T, E4M3, true>(codes, scales, numerics::nvfp4_tensor_scale_inv(amax, rule.e4m3_max),
                              out, count);
  }
}

template <typename T>
void dequantize(const DequantizeBlocksArgs& args, int64_t begin, int64_t end) {
  const BlockScales& rule = args.input.scales;
  const int64_t cols = args.input.data.cols;
  alignas(64) float scales[kRun];
  for (int64_t row = begin; row < end;) {
    const int64_t band_end = minimum((row / rule.block_rows + 1) * rule.block_rows, end);
    for (int64_t col = 0; col < cols; col += kRun) {
      const int64_t col_end = minimum(col + kRun, cols);
      spread_scales(rule, row, col, col_end, scales);
      for (int64_t r = row; r < band_end; ++r) {
        dequantize_run<T>(args, r, col, col_end, scales);
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
