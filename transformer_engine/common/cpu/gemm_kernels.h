// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What cpu/gemm_*.cpp (blocking, threads, workspace) asks of cpu/kernels/gemm_*.cpp (one body per
// instruction set). Plain structs: the kernel files include no standard library.
#pragma once

#include <transformer_engine/types.h>

#include "cpu/isa.h"

namespace transformer_engine::cpu {

// What happens to the FP32 sums of D. Pointers are at row 0, column 0 of D.
struct GemmFinish {
  float alpha = 1.0F;
  const void* bias = nullptr;  // [n] or null
  DType bias_dtype = DType::kFloat32;
  void* pre_epilogue = nullptr;  // rows `d_stride` apart, type of d; or null
  void* d = nullptr;
  DType d_dtype = DType::kFloat32;
  int64_t d_stride = 0;  // elements between rows of d
  bool has_gelu = false;
  bool accumulate = false;
};

// A piece [rows, k] of op(A) or op(B) to copy into panels: panel p holds rows p * width ... of the
// piece as [steps][width] 32-bit words. A word is one FP32 (k = step) or, in pairs, two BF16
// (k = 2 * step in the low half, 2 * step + 1 in the high half). Missing rows and k read as 0.
// Up to kPackSlackBytes behind the last panel are written, too.
struct GemmPackArgs {
  const void* source = nullptr;  // first element of the piece
  DType dtype = DType::kFloat32;
  bool is_transposed = false;  // false: stored [rows, k]; true: stored [k, rows]
  int64_t stride = 0;          // elements between stored rows
  int64_t rows = 0;
  int64_t k = 0;
  int64_t width = 0;
  bool as_pairs = false;
  void* panels = nullptr;
  // Block-scaled: read instead of source and stride; the piece begins at (row, col) as stored. What
  // scales the whole matrix is left out. Rows are dequantized first, to BF16 or FP32 in `scratch`:
  // those of one panel, or, stored [k, rows], kPackColumns of them.
  const BlockScaledMatrix* blocks = nullptr;
  int64_t row = 0, col = 0;
  void* scratch = nullptr;
  int64_t scratch_stride = 0;  // elements; kPackSlackElements more than a row has, at least
};
constexpr int64_t kPackSlackBytes = 64;
constexpr int64_t kPackColumns = 128;
constexpr int64_t kPackSlackElements = 64;

// One block product over `steps`, both operands packed. Sums of a tile are kept from one call to
// the next in `sums` when k is cut into several parts.
struct GemmBlockArgs {
  const void* a_panels = nullptr;  // panels of a_width
  const void* b_panels = nullptr;  // panels of GemmKernels::tile_cols
  int64_t a_width = 0;             // at most GemmKernels::tile_rows
  int64_t rows = 0, cols = 0, steps = 0;
  bool as_pairs = false;
  float* sums =
      nullptr;           // [row tiles][col tiles][tile_rows][tile_cols]; null when one call does it
  bool is_first = true;  // sums start from 0
  bool is_last = true;   // sums are finished into d
  int64_t row = 0, col = 0;  // of D, where the block begins
  GemmFinish finish;
};

// A few rows of op(A) in the form that the skinny inner loop reads: FP32, or BF16 (as_pairs), k
// padded with zeros to `row_elements`, a multiple of kSkinnyUnit.
struct GemmSkinnyPrepareArgs {
  BlockScaledMatrix matrix;  // stored [m, k]; block-scaled where it has scales
  bool as_pairs = false;
  int64_t row_elements = 0;
  void* prepared = nullptr;  // [m, row_elements]
  void* scratch = nullptr;   // block-scaled: [row_elements] of the prepared type
};
constexpr int64_t kSkinnyUnit = 64;

// Stored rows row_begin ... row_end of B [n, k] times all rows of A: as many columns of D.
struct GemmSkinnyArgs {
  const void* a = nullptr;  // prepared
  BlockScaledMatrix b;      // block-scaled where it has scales
  bool as_pairs = false;
  int64_t m = 0, k = 0;
  int64_t row_elements = 0;  // of prepared and dequantized rows
  int64_t row_begin = 0, row_end = 0;
  void* scratch = nullptr;  // block-scaled: [kSkinnyRowsAtOnce, row_elements] of the prepared type
  GemmFinish finish;
};
constexpr int64_t kSkinnyRowsAtOnce = 4;

struct GemmKernels {
  int tile_rows;      // most rows of D in one register tile
  int tile_cols;      // columns of D in one register tile
  bool has_bf16_dot;  // as_pairs is possible
  void (*pack)(const GemmPackArgs& args);
  void (*multiply_block)(const GemmBlockArgs& args);
};

struct GemmSkinnyKernels {
  int64_t max_rows;   // largest m
  bool has_bf16_dot;  // as_pairs is possible
  void (*prepare)(const GemmSkinnyPrepareArgs& args);
  void (*multiply)(const GemmSkinnyArgs& args);
};

TE_DECLARE_CPU_KERNELS(GemmKernels, gemm_kernels)
TE_DECLARE_CPU_KERNELS(GemmSkinnyKernels, gemm_skinny_kernels)

}  // namespace transformer_engine::cpu
