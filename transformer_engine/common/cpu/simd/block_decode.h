// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Values of a run of columns of a block-scaled row: FP8 codes times the scales of their blocks (and
// times a second level of scale), each product rounded to FP32.
#pragma once

#include "cpu/simd/block_scales.h"
#include "cpu/simd/e8m0.h"
#include "cpu/simd/fp8_bf16.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

struct BlockRun {
  const uint8_t* codes;
  int64_t count;
  const float* scales;  // of its blocks
  int64_t block;        // columns
  int64_t offset;       // columns of the first block that lie before the run
  float tensor;         // second level of scale
};

TE_INLINE Vi load_bytes(const uint8_t* p, AllLanes) { return load_bytes(p); }

// In FP32 lanes, from column `begin` of the run on. kTensor: there is a second level of scale.
template <typename T, typename Format, bool kTensor>
TE_INLINE void decode_lanes_of(const BlockRun& run, int64_t begin, T* out) {
  const Vf second = set1(run.tensor);
  const auto decode = [&](int64_t i, Vf scale, auto lanes) TE_INLINE_LAMBDA {
    Vf value = decode_lanes<Format>(load_bytes(run.codes + i, lanes)) * scale;
    if constexpr (kTensor) {
      value *= second;
    }
    store(out + i, value, lanes);
  };
  if (run.block == 1) {
    for_lanes<kWidth>(run.count - begin, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      decode(begin + i, load(run.scales + begin + i, lanes), lanes);
    });
    return;
  }
  const float* scales = run.scales + (begin + run.offset) / run.block;
  int64_t end = run.block - (begin + run.offset) % run.block + begin;
  for (; begin < run.count; begin = end, end += run.block) {
    const Vf scale = set1(*scales++);
    for_lanes<kWidth>(minimum(end, run.count) - begin,
                      [&](int64_t i, int, auto lanes)
                          TE_INLINE_LAMBDA { decode(begin + i, scale, lanes); });
  }
}

#if TE_ISA_LEVEL >= 3

// Elements 2i of both, and elements 2i + 1.
TE_INLINE HalfScales even_and_odd(Vf a, Vf b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {{_mm512_permutex2var_ps(a.v, even, b.v)}, {_mm512_permutex2var_ps(a.v, odd, b.v)}};
}

// Scales of the half of a step that begins at column i.
template <int kBlock>
TE_INLINE HalfScales half_scales(const float* scales, int64_t i) {
  if constexpr (kBlock == 1) {
    return even_and_odd(load(scales + i), load(scales + i + kWidth));
  } else if constexpr (kBlock == 16) {
    const Vf both = {
        _mm512_insertf32x8(_mm512_set1_ps(scales[i / 16]), _mm256_set1_ps(scales[i / 16 + 1]), 1)};
    return {both, both};
  } else {
    const Vf scale = set1(scales[i / kBlock]);
    return {scale, scale};
  }
}

// In BF16 registers, a quarter of the instructions: as many whole steps as there are; returns their
// columns.
template <typename Format, bool kTensor, int kBlock>
TE_INLINE int64_t decode_steps(const BlockRun& run, Bf16* out) {
  const Vf second = set1(run.tensor);
  const auto multiply = [&](Vf value, Vf scale) TE_INLINE_LAMBDA {
    const Vf product = value * scale;
    return kTensor ? product * second : product;
  };
  int64_t i = 0;
  for (; i + kBulk <= run.count; i += kBulk) {
    const Bf16Registers values = decode_registers<Format>(load_register(run.codes + i));
    store_register(out + i,
                   scale_register(values.first, half_scales<kBlock>(run.scales, i), multiply));
    store_register(
        out + i + kBulk / 2,
        scale_register(values.second, half_scales<kBlock>(run.scales, i + kBulk / 2), multiply));
  }
  return i;
}

#endif

template <typename T, typename Format, bool kTensor>
TE_INLINE void decode_run(const BlockRun& run, T* out) {
  int64_t done = 0;
#if TE_ISA_LEVEL >= 3
  if constexpr (__is_same(T, Bf16)) {
    if (run.offset == 0) {
      done = run.block == 1     ? decode_steps<Format, kTensor, 1>(run, out)
             : run.block == 16  ? decode_steps<Format, kTensor, 16>(run, out)
             : run.block == 32  ? decode_steps<Format, kTensor, 32>(run, out)
             : run.block == 128 ? decode_steps<Format, kTensor, 128>(run, out)
                                : 0;
    }
  }
#endif
  decode_lanes_of<T, Format, kTensor>(run, done, out);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
