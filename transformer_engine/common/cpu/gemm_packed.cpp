// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Blocking and threads of the packed GEMM (register tile: cpu/kernels/gemm_packed.cpp).
//
// D is cut into one region per thread; each thread packs what its region needs, so that threads
// never wait for each other. A region goes block by block:
//   for blocks of D [<= kBlockRows, <= kBlockCols]
//     for parts of k [<= kPartSteps words]
//       pack B [block cols, part]
//       for slices of the block's rows [<= kSliceRows]
//         pack A [slice rows, part]; multiply tile by tile, columns outside
// A panel of B (32 columns x 256 steps x 4 bytes = 32 KiB) stays in L1 (48 KiB on current servers,
// 14 KiB of A beside it) for all row tiles of a slice; the slice of A (392 x 256 x 4 = 392 KiB)
// stays in L2 (1 MiB and more) for all panels of B. Packing costs about 0.15 cycles per element; an
// element of A serves kBlockCols multiply-adds of 1/64 cycle each, one of B kBlockRows: 2 to 4 %
// together. Sums between parts of k lie in FP32 in the workspace; a single part needs none.
// Workspace per thread: 0.4 + 1 MiB, and 4 MiB of sums where k has several parts; up to 0.2 MiB for
// block-scaled operands, which are dequantized on the way into the panels.
#include "core/gemm_shape.h"
#include "core/parallel.h"
#include "cpu/gemm.h"
#include "cpu/gemm_finish.h"
#include "cpu/gemm_kernels.h"
#include "cpu/gemm_workspace.h"

namespace transformer_engine::cpu {

namespace {

constexpr int64_t kBlockRows = 1024;
constexpr int64_t kBlockCols = 1024;
constexpr int64_t kSliceRows = 392;  // 28 tiles of 14 rows
constexpr int64_t kPartSteps = 256;
constexpr int64_t kWordBytes = 4;
// Multiply-adds that one thread does while another is woken (about 5 us).
constexpr int64_t kMultiplyAddsPerThread = int64_t{1} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// [0, count) in equal pieces of at most `limit`, each but the last a multiple of `unit`.
int64_t piece_size(int64_t count, int64_t limit, int64_t unit) {
  if (count <= 0) {
    return unit;
  }
  return round_up(ceil_div(count, ceil_div(count, limit)), unit);
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

struct Region {
  Range rows, cols;
};

struct PackedProblem {
  const GemmArgs& args;
  const GemmKernels& kernels;
  GemmShape shape;
  GemmFinish finish;
  bool as_pairs;
  int64_t elements_per_step;
  int64_t tile_rows;  // height of the panels of A
};

PackedProblem describe(const GemmKernels& kernels, const GemmArgs& args) {
  const bool as_pairs =
      kernels.has_bf16_dot && is_exact_in_bf16(args.a) && is_exact_in_bf16(args.b);
  const GemmShape shape = gemm_shape(args);
  const int64_t tile_rows = piece_size(shape.m, kernels.tile_rows, 1);
  return {args, kernels, shape, gemm_finish(args), as_pairs, as_pairs ? 2 : 1, tile_rows};
}

// Elements between the rows that a block-scaled piece is dequantized to.
int64_t dequantized_stride(const GemmOperand& operand, int64_t k) {
  return round_up(operand.is_transposed ? kPackColumns : k, kPackSlackElements) +
         kPackSlackElements;
}

int64_t dequantized_bytes(const PackedProblem& problem, const GemmOperand& operand, int64_t k,
                          int64_t width) {
  if (!operand.scales.is_wanted()) {
    return 0;
  }
  const int64_t rows = operand.is_transposed ? k : width;
  return rows * dequantized_stride(operand, k) * kWordBytes / problem.elements_per_step;
}

// Scratch of one thread, cut from its workspace.
struct Scratch {
  char* a_panels;
  char* b_panels;
  float* sums;
  char* dequantized;
};

void pack(const PackedProblem& problem, const GemmOperand& operand, Range rows, Range k,
          int64_t width, void* panels, const Scratch& scratch) {
  GemmPackArgs pack;
  pack.row = operand.is_transposed ? k.begin : rows.begin;
  pack.col = operand.is_transposed ? rows.begin : k.begin;
  pack.dtype = operand.matrix.dtype;
  pack.is_transposed = operand.is_transposed;
  pack.rows = rows.size();
  pack.k = k.size();
  pack.width = width;
  pack.as_pairs = problem.as_pairs;
  pack.panels = panels;
  const BlockScaledMatrix blocks = {operand.matrix, operand.scales};
  if (operand.scales.is_wanted()) {
    pack.blocks = &blocks;
    pack.scratch = scratch.dequantized;
    pack.scratch_stride = dequantized_stride(operand, k.size());
  } else {
    pack.stride = operand.matrix.cols;
    pack.source = static_cast<const char*>(operand.matrix.data) +
                  (pack.row * pack.stride + pack.col) * element_size_bytes(pack.dtype);
  }
  problem.kernels.pack(pack);
}

// Largest pieces that a region of this size is worked on in.
struct Pieces {
  int64_t rows, cols, slice_rows, k;
};

Pieces choose_pieces(const PackedProblem& problem, const Region& region) {
  Pieces pieces;
  pieces.rows = piece_size(region.rows.size(), kBlockRows, problem.tile_rows);
  pieces.cols = piece_size(region.cols.size(), kBlockCols, problem.kernels.tile_cols);
  pieces.slice_rows = piece_size(pieces.rows, kSliceRows, problem.tile_rows);
  // A multiple of 64 elements: whole cache lines of FP8, full registers for the packing.
  pieces.k = piece_size(problem.shape.k, kPartSteps * problem.elements_per_step, 64);
  return pieces;
}

Scratch get_scratch(const PackedProblem& problem, const Pieces& pieces) {
  const int64_t k = smaller(pieces.k, problem.shape.k);
  const int64_t step_bytes = ceil_div(k, problem.elements_per_step) * kWordBytes;
  const auto panel_bytes = [&](int64_t rows) {
    return round_up(rows * step_bytes + kPackSlackBytes, kPackSlackBytes);
  };
  const int64_t a_bytes = panel_bytes(pieces.slice_rows);
  const int64_t b_bytes = panel_bytes(pieces.cols);
  const int64_t row_tiles = ceil_div(pieces.rows, problem.tile_rows);
  const bool has_sums = problem.shape.k > pieces.k;
  const int64_t sums_bytes =
      has_sums ? row_tiles * problem.kernels.tile_rows * pieces.cols * kWordBytes : 0;
  const int64_t dequantized_size =
      larger(dequantized_bytes(problem, problem.args.a, k, problem.tile_rows),
             dequantized_bytes(problem, problem.args.b, k, problem.kernels.tile_cols));
  char* const memory =
      static_cast<char*>(gemm_workspace(a_bytes + b_bytes + sums_bytes + dequantized_size));
  char* const sums = memory + a_bytes + b_bytes;
  return {memory, memory + a_bytes, has_sums ? reinterpret_cast<float*>(sums) : nullptr,
          sums + sums_bytes};
}

// All of k for one block of D.
void run_block(const PackedProblem& problem, const Region& block, const Pieces& pieces,
               const Scratch& scratch) {
  const GemmKernels& kernels = problem.kernels;
  const int64_t k = problem.shape.k;
  const int64_t col_tiles = ceil_div(block.cols.size(), kernels.tile_cols);
  GemmBlockArgs args;
  args.a_panels = scratch.a_panels;
  args.b_panels = scratch.b_panels;
  args.a_width = problem.tile_rows;
  args.cols = block.cols.size();
  args.as_pairs = problem.as_pairs;
  args.finish = problem.finish;
  args.col = block.cols.begin;
  int64_t k_begin = 0;
  do {  // k = 0 runs once: d becomes the bias, or stays when accumulating
    const Range part = {k_begin, smaller(k_begin + pieces.k, k)};
    args.steps = ceil_div(part.size(), problem.elements_per_step);
    args.is_first = part.begin == 0;
    args.is_last = part.end == k;
    pack(problem, problem.args.b, block.cols, part, kernels.tile_cols, scratch.b_panels, scratch);
    for (int64_t row = block.rows.begin; row < block.rows.end; row += pieces.slice_rows) {
      const Range slice = {row, smaller(row + pieces.slice_rows, block.rows.end)};
      pack(problem, problem.args.a, slice, part, problem.tile_rows, scratch.a_panels, scratch);
      args.rows = slice.size();
      const int64_t first_tile = (row - block.rows.begin) / problem.tile_rows;
      args.sums =
          scratch.sums == nullptr
              ? nullptr
              : scratch.sums + first_tile * col_tiles * kernels.tile_rows * kernels.tile_cols;
      args.row = row;
      kernels.multiply_block(args);
    }
    k_begin = part.end;
  } while (k_begin < k);
}

void run_region(const PackedProblem& problem, const Region& region) {
  const Pieces pieces = choose_pieces(problem, region);
  const Scratch scratch = get_scratch(problem, pieces);
  for (int64_t row = region.rows.begin; row < region.rows.end; row += pieces.rows) {
    for (int64_t col = region.cols.begin; col < region.cols.end; col += pieces.cols) {
      const Region block = {{row, smaller(row + pieces.rows, region.rows.end)},
                            {col, smaller(col + pieces.cols, region.cols.end)}};
      run_block(problem, block, pieces, scratch);
    }
  }
}

// How D is cut into regions: the grid of at most `threads` regions with the least work in its
// largest one, counted in multiply-adds per k. Packing an element costs as much as about 10.
struct Grid {
  int64_t region_rows, region_cols;
};

Grid choose_grid(const PackedProblem& problem, int num_threads) {
  constexpr int64_t kPackCost = 10;
  const auto [m, n, k] = problem.shape;
  const int64_t worthwhile = m * n * (k + 1) / kMultiplyAddsPerThread + 1;
  const int64_t threads = smaller(num_threads, worthwhile);
  Grid best = {m, n};
  int64_t best_cost = INT64_MAX;
  for (int64_t across = 1; across <= threads; ++across) {
    const Grid grid = {piece_size(m, ceil_div(m, across), problem.tile_rows),
                       piece_size(n, ceil_div(n, threads / across), problem.kernels.tile_cols)};
    const int64_t cost =
        grid.region_rows * grid.region_cols + kPackCost * (grid.region_rows + grid.region_cols);
    if (cost < best_cost) {
      best_cost = cost;
      best = grid;
    }
  }
  return best;
}

}  // namespace

void gemm_packed(const GemmArgs& args, const Context& context) {
  gemm_packed_with(TE_CPU_KERNELS(gemm_kernels), args, context);
}

void gemm_packed_with(const GemmKernels& kernels, const GemmArgs& args, const Context& context) {
  const PackedProblem problem = describe(kernels, args);
  const auto [m, n, k] = problem.shape;
  const Grid grid = choose_grid(problem, context.num_threads);
  const int64_t down = ceil_div(m, grid.region_rows);
  const int64_t across = ceil_div(n, grid.region_cols);
  parallel_for(down * across, 1, context.num_threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t row = index / across * grid.region_rows;
      const int64_t col = index % across * grid.region_cols;
      run_region(problem, {{row, smaller(row + grid.region_rows, m)},
                           {col, smaller(col + grid.region_cols, n)}});
    }
  });
}

}  // namespace transformer_engine::cpu
