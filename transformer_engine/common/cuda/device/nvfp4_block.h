// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One block of 16 NVFP4 elements, held by one thread: its scale and its codes, by the rules of
// numerics/nvfp4.h.
#pragma once

#include "cuda/device/convert.h"
#include "cuda/device/reduce.h"
#include "numerics/nvfp4.h"

namespace transformer_engine::cuda::nvfp4 {

constexpr int kBlock = numerics::kNvfp4Block;

// How a kernel is compiled: what a block costs differs by a factor of two to three, registers too.
enum class Mode { kNearest, kStochastic, kFourOverSix };

// The codes of a block, that of element 0 in the lowest four bits.
struct Codes {
  uint32_t word[2];
};

struct QuantizedBlock {
  uint8_t scale;
  Codes codes;
};

// Where a block lies in its copy as stored, and the seed: stochastic rounding takes its bits from
// them.
struct RandomPlace {
  int64_t row, col;
  bool is_columnwise;
  numerics::PhiloxKey key;
};

__device__ __forceinline__ float amax_of(const float (&values)[kBlock]) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    amax = max_skip_nan(amax, fabsf(values[i]));
  }
  return amax;
}

// numerics::nvfp4_multiplier by the conversion instruction.
__device__ __forceinline__ float multiplier_of(uint8_t scale, const numerics::Nvfp4Scale& tensor) {
  return fminf(1.0F / (decode_fp8<numerics::E4M3>(scale) * tensor.inverse), numerics::kFloatMax);
}

__device__ __forceinline__ Codes encode_to_nearest(const float (&values)[kBlock],
                                                   float multiplier) {
  Codes codes{};
#pragma unroll
  for (int i = 0; i < kBlock; i += 2) {
    const uint32_t pair = encode_e2m1_pair(values[i] * multiplier, values[i + 1] * multiplier);
    codes.word[i / 8] |= pair << (i % 8 * 4);
  }
  return codes;
}

__device__ __forceinline__ Codes encode_stochastically(const float (&values)[kBlock],
                                                       float multiplier, const RandomPlace& place) {
  Codes codes{};
#pragma unroll
  for (int group = 0; group < kBlock; group += numerics::kNvfp4RandomGroup) {
    const auto counter =
        numerics::nvfp4_random_counter(place.row, place.col + group, place.is_columnwise);
    const auto random = numerics::philox4x32_10(counter, place.key);
#pragma unroll
    for (int i = 0; i < numerics::kNvfp4RandomGroup; ++i) {
      const uint32_t code = numerics::encode_e2m1_stochastic(
          values[group + i] * multiplier, numerics::nvfp4_random_bits(random, i));
      codes.word[group / 8] |= code << (i * 4);
    }
  }
  return codes;
}

template <Mode kMode>
__device__ __forceinline__ Codes encode_block(const float (&values)[kBlock], uint8_t scale,
                                              const numerics::Nvfp4Scale& tensor,
                                              const RandomPlace& place) {
  const float multiplier = multiplier_of(scale, tensor);
  if constexpr (kMode == Mode::kStochastic) {
    return encode_stochastically(values, multiplier, place);
  } else {
    return encode_to_nearest(values, multiplier);
  }
}

// Code number i of a word. Two exponent bits and one mantissa bit in the place of FP32's lowest
// ones stand for the number times 2^-126, denormals included.
__device__ __forceinline__ float decode_e2m1(uint32_t codes, int i) {
  const uint32_t code = codes >> (4 * i);
  return __uint_as_float(((code & 8U) << 28) | ((code & 7U) << 22)) * 0x1p126F;
}

// Four over six: one of the two scales that a block may take, and its error.
struct Attempt {
  QuantizedBlock block;
  float error;
};
__device__ __forceinline__ Attempt attempt(const float (&values)[kBlock], uint8_t scale,
                                           const numerics::Nvfp4Scale& tensor, bool is_squared) {
  const Codes codes = encode_to_nearest(values, multiplier_of(scale, tensor));
  const float factor = decode_fp8<numerics::E4M3>(scale);
  float errors[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const float error =
        fabsf(decode_e2m1(codes.word[i / 8], i % 8) * factor - values[i] * tensor.scale);
    errors[i] = is_squared ? error * error : error;
  }
  return {{scale, codes}, numerics::sum_by_halves(errors)};
}

struct BlockRule {
  bool has_square_tiles;
  bool is_squared;  // the error of four over six
};

// `amax` is the block's, or the tile's. Of a tile, 16 neighbouring lanes hold the 16 rows, and all
// lanes of the warp call this together.
template <Mode kMode>
__device__ __forceinline__ QuantizedBlock quantize_block(const float (&values)[kBlock], float amax,
                                                         const numerics::Nvfp4Scale& tensor,
                                                         const BlockRule& rule,
                                                         const RandomPlace& place) {
  const uint8_t to_six = encode_fp8<numerics::E4M3>(amax * tensor.over_six);
  if constexpr (kMode == Mode::kFourOverSix) {
    const uint8_t to_four = encode_fp8<numerics::E4M3>(amax * tensor.over_six * 1.5F);
    Attempt six = attempt(values, to_six, tensor, rule.is_squared);
    Attempt four = attempt(values, to_four, tensor, rule.is_squared);
    if (rule.has_square_tiles) {  // at distances 8, 4, 2, 1: numerics::sum_by_halves
      six.error = warp_reduce<Sum, kBlock>(six.error);
      four.error = warp_reduce<Sum, kBlock>(four.error);
    }
    return four.error < six.error ? four.block : six.block;
  } else {
    return {to_six, encode_block<kMode>(values, to_six, tensor, place)};
  }
}

}  // namespace transformer_engine::cuda::nvfp4
