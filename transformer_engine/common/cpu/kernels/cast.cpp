// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Cast kernels for one thread and one instruction set (table: cpu/cast_kernels.h).
//   quantize    q = FP8(x * scale), amax = max |x|; 1 byte written per 2 or 4 read
//   dequantize  y = T(float(q) * scale_inv)
//   transpose   bytes, tile by tile
// Rounding is to nearest even and saturates, as in numerics/minifloat.h.
#include "cpu/cast_kernels.h"
#include "cpu/simd/fp8.h"
#include "cpu/simd/fp8_bf16.h"
#include "cpu/simd/stores.h"
#include "cpu/simd/transpose.h"
#include "numerics/bits.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

using numerics::E4M3;
using numerics::E5M2;

// Reading far more than the caches hold, one core waits for the start of every page, where the
// processor's prefetcher begins anew: ask for what comes some pages later, and do not keep it.
template <typename T>
TE_INLINE void prefetch_ahead(const T* in, int64_t count) {
  constexpr int64_t kAheadBytes = 16384;
  prefetch_bytes<0>(in, kAheadBytes, count * int64_t{sizeof(T)});
}

// Any value, any scale. amax: largest magnitude so far.
template <typename Format, bool kStream, typename T>
TE_INLINE Vf quantize_row(const T* in, uint8_t* out, int64_t cols, Vf scale, Vf amax) {
  int64_t i = 0;
  for (; i + kWidth <= cols; i += kWidth) {
    if constexpr (kStream) {
      prefetch_ahead(in + i, kWidth);
    }
    const Vf x = load(in + i);
    amax = max_abs(x, amax);
    const Vi codes = encode_lanes<Format>(x * scale);
    if constexpr (kStream) {
      stream_bytes(out + i, codes);
    } else {
      store_bytes(out + i, codes);
    }
  }
  if (i < cols) {
    const Vf x = load(in + i, cols - i);
    amax = max_abs(x, amax);
    encode_store<Format>(out + i, x * scale, cols - i);
  }
  return amax;
}

template <typename Format, bool kStream, typename T>
TE_INLINE Vf quantize_rows(const QuantizeTile& tile, Vf scale, Vf amax) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    const T* in = static_cast<const T*>(tile.input) + row * tile.input_stride;
    if (tile.rows > 1) {
      prefetch_later_row(in, tile.input_stride, tile.cols);
    }
    amax = quantize_row<Format, kStream>(in, tile.output + row * tile.output_stride, tile.cols,
                                         scale, amax);
  }
  return amax;
}

#if TE_ISA_LEVEL >= 1

// BF16 inputs that are not NaN and a positive finite scale; a NaN shows in `magnitudes` or in
// nothing else: then the codes are wrong and the caller starts over.
template <typename Format, bool kStream>
TE_INLINE void quantize_bf16_rows(const QuantizeTile& tile, Vf scale, Magnitudes& magnitudes,
                                  Vf& tail_amax) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    const Bf16* in = static_cast<const Bf16*>(tile.input) + row * tile.input_stride;
    uint8_t* out = tile.output + row * tile.output_stride;
    if (tile.rows > 1) {
      prefetch_later_row(in, tile.input_stride, tile.cols);
    }
    int64_t i = 0;
    for (; i + kBulk <= tile.cols; i += kBulk) {
      if constexpr (kStream) {
        prefetch_ahead(in + i, kBulk);
      }
      const Register codes = encode_bulk<Format>(in + i, scale, magnitudes);
      if constexpr (kStream) {
        stream_register(out + i, codes);
      } else {
        store_register(out + i, codes);
      }
    }
    if (i < tile.cols) {
      tail_amax = quantize_row<Format, false>(in + i, out + i, tile.cols - i, scale, tail_amax);
    }
  }
}

// Blocks that stay in L1 (8 KiB of input), so that a block with a NaN is cheap to do again.
constexpr int64_t kBlockCols = 4096;

template <typename Format, bool kStream>
TE_INLINE float quantize_bf16_tile(const QuantizeTile& tile) {
  const Vf scale = set1(tile.scale);
  if (!(tile.scale > 0.0F && numerics::is_finite(tile.scale))) {
    return reduce_max(quantize_rows<Format, kStream, Bf16>(tile, scale, zero()));
  }
  uint16_t largest = 0;
  Vf amax = zero();
  const int64_t block_rows = tile.cols < kBlockCols ? kBlockCols / tile.cols : 1;
  for (int64_t row = 0; row < tile.rows; row += block_rows) {
    for (int64_t col = 0; col < tile.cols; col += kBlockCols) {
      QuantizeTile block = tile;
      block.input = static_cast<const Bf16*>(tile.input) + row * tile.input_stride + col;
      block.output = tile.output + row * tile.output_stride + col;
      block.rows = tile.rows - row < block_rows ? tile.rows - row : block_rows;
      block.cols = tile.cols - col < kBlockCols ? tile.cols - col : kBlockCols;
      Magnitudes magnitudes = {};
      quantize_bf16_rows<Format, kStream>(block, scale, magnitudes, amax);
      const uint16_t block_largest = reduce(magnitudes);
      if (block_largest > kBf16Infinity) {
        amax = quantize_rows<Format, kStream, Bf16>(block, scale, amax);
      } else if (block_largest > largest) {
        largest = block_largest;
      }
    }
  }
  const float tail_amax = reduce_max(amax);
  const float bulk_amax = numerics::float_from_bf16(largest);
  return tail_amax > bulk_amax ? tail_amax : bulk_amax;
}

#endif

template <typename Format, bool kStream, typename T>
TE_INLINE float quantize_tile(const QuantizeTile& tile) {
  float amax;
#if TE_ISA_LEVEL >= 1
  if constexpr (__is_same(T, Bf16)) {
    amax = quantize_bf16_tile<Format, kStream>(tile);
  } else
#endif
  {
    amax = reduce_max(quantize_rows<Format, kStream, T>(tile, set1(tile.scale), zero()));
  }
  finish_stores<kStream>();
  return amax;
}

template <typename T, typename Format>
float quantize(const QuantizeTile& tile) {
  if (tile.rows == 0 || tile.cols == 0) {
    return 0.0F;
  }
  const bool stream = tile.stream && is_line_aligned(tile.output, tile.output_stride, tile.rows);
  return stream ? quantize_tile<Format, true, T>(tile) : quantize_tile<Format, false, T>(tile);
}

template <typename T, typename Format>
void dequantize(const DequantizeRun& run) {
  T* out = static_cast<T*>(run.output);
  if constexpr (__is_same(T, Bf16)) {
    if (run.scale_inv == 1.0F) {
      if (run.stream && is_line_aligned(out, 0, 1)) {
        decode_bf16<Format, true>(run.input, out, run.numel);
        finish_stores<true>();
      } else {
        decode_bf16<Format>(run.input, out, run.numel);
      }
      return;
    }
  }
  const Vf scale_inv = set1(run.scale_inv);
  int64_t i = 0;
  for (; i + kWidth <= run.numel; i += kWidth) {
    store(out + i, decode_load<Format>(run.input + i) * scale_inv);
  }
  if (i < run.numel) {
    const int64_t rest = run.numel - i;
    store(out + i, decode_load<Format>(run.input + i, rest) * scale_inv, rest);
  }
}

template <typename T>
float amax(const void* input, int64_t numel) {
  const T* in = static_cast<const T*>(input);
  // Four chains, since one would wait for the latency of max.
  Vf largest[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kWidth <= numel; i += 4 * kWidth) {
    for (int chain = 0; chain < 4; ++chain) {
      largest[chain] = max_abs(load(in + i + chain * kWidth), largest[chain]);
    }
  }
  for (; i < numel; i += kWidth) {
    const int64_t rest = numel - i;
    largest[0] = max_abs(load(in + i, rest < kWidth ? rest : kWidth), largest[0]);
  }
  return reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
}

void transpose(const TransposeTile& tile) {
  const bool stream = tile.stream && is_line_aligned(tile.output, tile.output_stride, tile.cols);
  if (stream) {
    transpose_matrix<true>(tile.input, tile.input_stride, tile.output, tile.output_stride,
                           tile.rows, tile.cols);
    finish_stores<true>();
  } else {
    transpose_matrix<false>(tile.input, tile.input_stride, tile.output, tile.output_stride,
                            tile.rows, tile.cols);
  }
}

}  // namespace

const CastKernels cast_kernels = {
    .quantize = {{&quantize<float, E4M3>, &quantize<float, E5M2>},
                 {&quantize<Bf16, E4M3>, &quantize<Bf16, E5M2>},
                 {&quantize<Fp16, E4M3>, &quantize<Fp16, E5M2>}},
    .dequantize = {{&dequantize<float, E4M3>, &dequantize<float, E5M2>},
                   {&dequantize<Bf16, E4M3>, &dequantize<Bf16, E5M2>},
                   {&dequantize<Fp16, E4M3>, &dequantize<Fp16, E5M2>}},
    .amax = {&amax<float>, &amax<Bf16>, &amax<Fp16>},
    .transpose = &transpose,
};

}  // namespace transformer_engine::cpu::TE_ISA
