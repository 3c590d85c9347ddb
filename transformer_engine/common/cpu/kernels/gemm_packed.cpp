// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Register tile of the packed GEMM: tile_rows x tile_cols FP32 sums of D, in steps of one 32-bit
// word of k per operand row (one FP32, or a pair of BF16 multiplied by vdpbf16ps).
//
// Tile size. A multiply-add has a latency of 4 to 6 cycles and two start per cycle, so that at
// least 12 sums must be in flight. Per step a tile of r rows and c registers of columns needs r
// broadcasts and c loads for r * c multiply-adds, and r * c + c + 1 registers. AVX-512 has 32
// registers: 14 x 2 takes 31, loads 16 words for 28 multiply-adds (14 cycles; two loads per cycle
// would take 8). AVX2 has 16: 6 x 2 takes 15. The portable build (4 lanes, 16 registers) has its
// height held to 4 rows, a multiple of its lanes, which the packing needs.
//
// Bytes: 128 of B and 56 of A per step on AVX-512, B from L1, A from L2 (blocking: gemm_packed.cpp
// in the folder above).
#include "cpu/simd/gemm_finish.h"
#include "cpu/simd/gemm_pack.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

#if TE_ISA_LEVEL >= 2
constexpr int kTileRows = 14;
#elif TE_ISA_LEVEL == 1
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 4;
#endif
constexpr int kTileVectors = 2;
constexpr int kTileCols = kTileVectors * kWidth;
static_assert(kTileRows <= kWidth, "a panel of A is one group of rows for the packing");

// sums [kRows][kTileCols] = (or +=) A panel * B panel.
template <bool kAsPairs, int kRows>
void multiply_tile(const float* a, int64_t a_width, const float* b, int64_t steps, float* sums,
                   bool is_first) {
  Vf sum[kRows][kTileVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int i = 0; i < kTileVectors; ++i) {
      sum[row][i] = is_first ? zero() : load(sums + row * kTileCols + i * kWidth);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    const Vf b0 = load(b);
    const Vf b1 = load(b + kWidth);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const Vf word = broadcast(a + row);
      sum[row][0] = multiply_add_words<kAsPairs>(word, b0, sum[row][0]);
      sum[row][1] = multiply_add_words<kAsPairs>(word, b1, sum[row][1]);
    }
    a += a_width;
    b += kTileCols;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int i = 0; i < kTileVectors; ++i) {
      store(sums + row * kTileCols + i * kWidth, sum[row][i]);
    }
  }
}

using MultiplyTile = void (*)(const float*, int64_t, const float*, int64_t, float*, bool);

// One body per height, so that few rows cost few multiply-adds.
template <bool kAsPairs, int kRows>
MultiplyTile tile_of_height(int64_t rows) {
  if constexpr (kRows == 1) {
    return multiply_tile<kAsPairs, 1>;
  } else {
    return rows == kRows ? multiply_tile<kAsPairs, kRows>
                         : tile_of_height<kAsPairs, kRows - 1>(rows);
  }
}

template <bool kAsPairs>
void multiply_block_as(const GemmBlockArgs& args) {
  alignas(64) float own_sums[kTileRows * kTileCols];
  const float* const a_panels = static_cast<const float*>(args.a_panels);
  const float* const b_panels = static_cast<const float*>(args.b_panels);
  const int64_t col_tiles = (args.cols + kTileCols - 1) / kTileCols;
  const int64_t row_tiles = (args.rows + args.a_width - 1) / args.a_width;
  const int64_t last_rows = args.rows - (row_tiles - 1) * args.a_width;
  const MultiplyTile whole = tile_of_height<kAsPairs, kTileRows>(args.a_width);
  const MultiplyTile last = tile_of_height<kAsPairs, kTileRows>(last_rows);
  for (int64_t col_tile = 0; col_tile < col_tiles; ++col_tile) {
    const int64_t col = col_tile * kTileCols;
    const int64_t cols = args.cols - col < kTileCols ? args.cols - col : kTileCols;
    for (int64_t row_tile = 0; row_tile < row_tiles; ++row_tile) {
      const bool is_last_row = row_tile == row_tiles - 1;
      float* const sums = args.sums == nullptr ? own_sums
                                               : args.sums + (row_tile * col_tiles + col_tile) *
                                                                 (kTileRows * kTileCols);
      (is_last_row ? last : whole)(a_panels + row_tile * args.a_width * args.steps, args.a_width,
                                   b_panels + col * args.steps, args.steps, sums, args.is_first);
      if (args.is_last) {
        finish_piece(finish_at(args.finish, args.row + row_tile * args.a_width, args.col + col),
                     sums, kTileCols, is_last_row ? last_rows : args.a_width, cols);
      }
    }
  }
}

void pack_blocks(const GemmPackArgs& args) {
#if TE_ISA_LEVEL >= 3
  if (args.as_pairs) {
    return pack_blocks_as<Bf16, true>(args);
  }
#endif
  pack_blocks_as<float, false>(args);
}

void pack(const GemmPackArgs& args) {
  if (args.blocks != nullptr) {
    return pack_blocks(args);
  }
  with_type(args.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (kFitsPairs<T>) {
      if (args.as_pairs) {
        return pack_as<T, true>(args);
      }
    }
    pack_as<T, false>(args);
  });
}

void multiply_block(const GemmBlockArgs& args) {
#if TE_ISA_LEVEL >= 3
  if (args.as_pairs) {
    return multiply_block_as<true>(args);
  }
#endif
  multiply_block_as<false>(args);
}

}  // namespace

extern const GemmKernels gemm_kernels = {kTileRows, kTileCols, kHasBf16Dot, pack, multiply_block};

}  // namespace transformer_engine::cpu::TE_ISA
