// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Formats with one scale per block of elements: quantize and dequantize.
//   FP8 blocks  E4M3 or E5M2; 1 x 128 blocks or 128 x 128 tiles; FP32 scales
//   MXFP8       E4M3 or E5M2; blocks of 32, or tiles of 32 x 32; E8M0 scales (OCP microscaling)
//   NVFP4       E2M1; blocks of 16, or tiles of 16 x 16; E4M3 scales under one FP32 amax
// A tensor [M, K] has up to two copies. The rowwise one is stored [M, K], its blocks lie along K;
// the columnwise one is quantized along M: MXFP8 stores it [M, K], the others transposed, [K, M].
// Each copy is a quantization of the input of its own. Sizes need not be multiples of the block:
// the last block of a row has the elements that are left. The rules stand once, in numerics/.
// The amax of a block skips NaN values, as hardware maxima do: a NaN element becomes the NaN code
// of its format, its neighbours are scaled as if it were not there, and a block of nothing but NaN
// has amax 0. Saturating: +-Inf and what is out of range become +-max.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

struct QuantizeFp8BlocksArgs {
  TensorView input;                   // [M, K] FP32, BF16 or FP16
  BlockScaledMatrix rowwise = {};     // [M, K], optional
  BlockScaledMatrix columnwise = {};  // [K, M], optional; at least one of both
  float epsilon = 0.0F;               // amax of a block is raised to it
  const float* noop = nullptr;        // [1]: when non-null and not 0, nothing is written
};
// Per block: scale = fp8_max / max(amax, epsilon), 1 where that amax is 0, Inf or NaN, the largest
// finite number of the input's type where the quotient overflows; mantissa cleared with
// scales.are_powers_of_two; q = saturating round-to-nearest-even cast of x * scale; stored is
// 1 / scale. Blocks are 1 x 128 as stored, or 128 x 128, by scales.block_rows of each copy.
void quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context);

struct QuantizeMxfp8Args {
  TensorView input;                   // [M, K] FP32, BF16 or FP16
  BlockScaledMatrix rowwise = {};     // [M, K], blocks 1 x 32; optional
  BlockScaledMatrix columnwise = {};  // [M, K], blocks 32 x 1; optional; at least one of both
  bool has_square_tiles = false;  // the blocks of a 32 x 32 tile share the code of the tile's amax
  const float* noop = nullptr;    // [1]: when non-null and not 0, nothing is written
};
// Per block: code = e8m0_from_amax(amax) (254 for an amax of Inf), q = saturating
// round-to-nearest-even cast of x * 2^(127 - code).
void quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context);

enum class FourOverSix : int32_t { kNone = 0, kMeanAbsoluteError = 1, kMeanSquaredError = 2 };

// The fixed signs of the Hadamard transform, + + + - + - - - - - - + - + - -: bit i is set for -.
inline constexpr uint16_t kHadamardSigns = 0xD7E8;

struct QuantizeNvfp4Args {
  TensorView input;                   // [M, K] FP32, BF16 or FP16
  BlockScaledMatrix rowwise = {};     // [M, K], blocks 1 x 16; optional
  BlockScaledMatrix columnwise = {};  // [K, M], blocks 1 x 16; optional; at least one of both
  bool has_square_tiles = false;      // the blocks of a 16 x 16 tile share the scale of its amax
  bool has_hadamard = false;          // the columnwise copy is that of the transformed input
  uint16_t hadamard_signs = 0;        // bit i: row i of a group of 16 is negated first
  bool is_stochastic = false;         // stochastic rounding, from `seed`
  uint64_t seed = 0;
  // [1], where the input is: read in place of `seed`, when the kernel runs. A graph that is
  // replayed takes another one each time.
  const uint64_t* device_seed = nullptr;
  FourOverSix four_over_six = FourOverSix::kNone;
  const float* noop = nullptr;  // [1]: when non-null and not 0, nothing is written
};
// Fills scales.amax where it is not null, whether or not the copy has data yet: max |x|, NaN
// skipped, 0 for an empty input; [1], or [M] per row with scales.is_row_scaled; for the columnwise
// copy after the transform, where there is one.
void compute_nvfp4_amax(const QuantizeNvfp4Args& args, const Context& context);
// Reads scales.amax (which may have been reduced over several devices) and writes data and scales
// of the wanted copies; numerics/nvfp4.h has the rules: scales, rounding, random bits, the choice
// of four over six, and what 0, infinity and NaN give. The elements that fill up the last block of
// a row are 0; with the transform (numerics/hadamard.h) they take part: rows beyond the last count
// as 0, and all 16 transformed values are stored.
// Refused with ValueError: four_over_six with has_hadamard or is_stochastic; a row-scaled rowwise
// copy with has_hadamard, is_stochastic or has_square_tiles; a row-scaled columnwise copy.
void quantize_nvfp4(const QuantizeNvfp4Args& args, const Context& context);

struct DequantizeBlocksArgs {
  BlockScaledMatrix input;
  TensorView output;  // as stored, [rows, cols] FP32, BF16 or FP16: round(q * scale (* factor))
};
void dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context);

}  // namespace transformer_engine
