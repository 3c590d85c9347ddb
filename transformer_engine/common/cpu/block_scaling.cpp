// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splits block scaling over tiles and threads. A tile is one block high, so that the columnwise
// blocks are whole, and as wide as the caches allow.
#include "cpu/block_scaling.h"

#include <algorithm>

#include "core/parallel.h"
#include "cpu/io_index.h"
#include "numerics/half.h"
#include "numerics/minifloat.h"

namespace transformer_engine::cpu {

namespace {

// Elements below which a thread costs more than it brings (about 2 us of work).
constexpr int64_t kGrainNumel = 16384;

// Codes of this size are written around the caches; see kStreamTransposeBytes in cast.cpp.
constexpr int64_t kStreamNumel = int64_t{2} << 20;

constexpr int64_t kFp8Block = 128;
constexpr int64_t kMxBlock = 32;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

const BlockScaledMatrix& any_copy(const BlockQuantizedOutput& output) {
  return output.rowwise.is_wanted() ? output.rowwise : output.columnwise;
}

float largest_number(DType dtype) {
  return dtype == DType::kBFloat16  ? numerics::float_from_bf16(numerics::kBf16Max)
         : dtype == DType::kFloat16 ? numerics::float_from_fp16(numerics::kFp16Max)
                                    : numerics::kFloatMax;
}

// A copy of the whole matrix.
BlockCopyTile whole_copy(const BlockScaledMatrix& matrix, const BlockQuantizedOutput& output,
                         DType input_dtype) {
  const BlockScales& scales = matrix.scales;
  const bool is_e8m0 = scales.dtype == DType::kFloat8E8M0;
  // Blocks of MXFP8's columnwise copy lie along the columns as stored.
  const bool is_along_columns = scales.block_cols == 1;
  const bool is_e4m3 = matrix.data.dtype == DType::kFloat8E4M3;
  return {.codes = static_cast<uint8_t*>(matrix.data.data),
          .codes_stride = matrix.data.cols,
          .scales = scales.data,
          .line_stride = is_along_columns ? scales.col_stride : scales.row_stride,
          .block_stride = is_along_columns ? scales.row_stride : scales.col_stride,
          .lines_per_scale = is_e8m0 ? 1 : scales.block_rows,
          .shares_amax = is_e8m0 ? output.has_square_tiles : scales.block_rows > 1,
          .rule = {.is_e8m0 = is_e8m0,
                   .is_power_of_two = is_e8m0 || scales.are_powers_of_two,
                   .fp8_max = is_e4m3 ? numerics::E4M3::kMax : numerics::E5M2::kMax,
                   .epsilon = output.epsilon,
                   .largest = largest_number(input_dtype)}};
}

// Moves a copy to the scales of a line and a block, and to codes at an offset.
void move(BlockCopyTile& copy, int64_t line, int64_t block, int64_t codes_offset) {
  const int64_t index = line / copy.lines_per_scale * copy.line_stride + block * copy.block_stride;
  const int64_t scale_bytes = copy.rule.is_e8m0 ? 1 : static_cast<int64_t>(sizeof(float));
  if (copy.codes != nullptr) {
    copy.codes += codes_offset;
    copy.scales = static_cast<char*>(copy.scales) + index * scale_bytes;
  }
}

bool is_noop(const float* flag) { return flag != nullptr && *flag != 0.0F; }

}  // namespace

int64_t block_of(const BlockQuantizedOutput& output) {
  return any_copy(output).scales.dtype == DType::kFloat8E8M0 ? kMxBlock : kFp8Block;
}

BlockTile whole_tile(const BlockQuantizedOutput& output, const TensorView& input, bool stream) {
  return {.input = input.data,
          .input_stride = input.cols,
          .rows = input.rows,
          .cols = input.cols,
          .block = block_of(output),
          .rowwise = whole_copy(output.rowwise, output, input.dtype),
          .columnwise = whole_copy(output.columnwise, output, input.dtype),
          .stream = stream};
}

BlockQuantizer::BlockQuantizer(const BlockQuantizedOutput& output, const TensorView& input)
    : whole_(whole_tile(output, input, input.numel() >= kStreamNumel)),
      kernel_(TE_CPU_KERNELS(block_quantize_kernels)
                  .run[high_precision_index(input.dtype)][fp8_index(any_copy(output).data.dtype)]) {
}

void BlockQuantizer::quantize_tile(const void* values, int64_t stride, int64_t row, int64_t col,
                                   int64_t rows, int64_t cols) const {
  BlockTile tile = whole_;
  tile.input = values;
  tile.input_stride = stride;
  tile.rows = rows;
  tile.cols = cols;
  const int64_t offset = row * whole_.cols + col;
  move(tile.rowwise, row, col / tile.block, offset);
  move(tile.columnwise, col, row / tile.block,
       tile.block == kFp8Block ? col * whole_.rows + row : offset);
  kernel_(tile);
}

void quantize_blocks(const TensorView& input, const BlockQuantizedOutput& output, int num_threads) {
  if (input.numel() == 0) {
    return;
  }
  const BlockQuantizer quantizer(output, input);
  const auto [tile_rows, tile_cols] = tile_limits(quantizer.block());
  const int64_t tiles_per_row = ceil_divide(input.cols, tile_cols);
  const int64_t tiles = ceil_divide(input.rows, tile_rows) * tiles_per_row;
  const int64_t tile_numel = std::min(input.rows, tile_rows) * std::min(input.cols, tile_cols);
  const int64_t grain = ceil_divide(kGrainNumel, tile_numel);
  parallel_for(tiles, grain, num_threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / tiles_per_row * tile_rows;
      const int64_t col = tile % tiles_per_row * tile_cols;
      quantizer.quantize_tile(static_cast<const char*>(input.data) +
                                  (row * input.cols + col) * element_size_bytes(input.dtype),
                              input.cols, row, col, std::min(tile_rows, input.rows - row),
                              std::min(tile_cols, input.cols - col));
    }
  });
}

void quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context) {
  if (!is_noop(args.noop)) {
    quantize_blocks(
        args.input,
        {.rowwise = args.rowwise, .columnwise = args.columnwise, .epsilon = args.epsilon},
        context.num_threads);
  }
}

void quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context) {
  if (!is_noop(args.noop)) {
    quantize_blocks(args.input,
                    {.rowwise = args.rowwise,
                     .columnwise = args.columnwise,
                     .has_square_tiles = args.has_square_tiles},
                    context.num_threads);
  }
}

void dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context) {
  const TensorView& output = args.output;
  const auto kernel =
      TE_CPU_KERNELS(block_dequantize_kernels).run[high_precision_index(output.dtype)];
  // Rows that share their scales stay together.
  const int64_t block_rows = args.input.scales.block_rows;
  const int64_t blocks = ceil_divide(kGrainNumel, std::max<int64_t>(output.cols * block_rows, 1));
  parallel_for(output.rows, blocks * block_rows, context.num_threads,
               [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
}

}  // namespace transformer_engine::cpu
