// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/result_rows.h"

#include <algorithm>

#include "cpu/cast_kernels.h"
#include "cpu/io_index.h"
#include "cpu/row_work.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu {

namespace {

// A slab and its codes stay in half of a 1 MiB second-level cache.
constexpr int64_t kSlabBytes = int64_t{512} << 10;
// 64 rows make whole cache lines of the transpose; more bring nothing.
constexpr int64_t kMaxSlabRows = 64;
// Columns quantized before they are transposed: 64 x 256 codes are 16 KiB, half of a small L1.
constexpr int64_t kTileCols = 256;

// A slab of blocks is as high as a tile where it stays in this share of the last-level cache, else
// one block. Transposed copies gain most (256 rows against 128: 1.1 times for the whole op).
constexpr int64_t kBlockSlabBytes = int64_t{2} << 20;

// Rows of an aligned slab of blocks, 0 where there would be too few slabs for the threads.
int64_t choose_block_rows(const TensorView& output, const BlockQuantizedOutput& blocks,
                          int num_threads) {
  const int64_t block = block_of(blocks);
  const int64_t tile_rows = tile_limits(block).rows;
  const int64_t tile_bytes = tile_rows * output.cols * element_size_bytes(output.dtype);
  const int64_t rows = tile_bytes <= kBlockSlabBytes ? tile_rows : block;
  const int64_t useful_threads =
      std::min<int64_t>(num_threads, output.rows / row_grain(output.cols));
  return output.rows >= rows * useful_threads ? rows : 0;
}

}  // namespace

ResultRows::Slabs ResultRows::choose_slabs(const TensorView& output,
                                           const QuantizedOutput& quantized, int num_threads) {
  const int64_t all_rows = std::max<int64_t>(output.rows, 1);
  if (quantized.blocks.is_wanted()) {
    const int64_t rows = choose_block_rows(output, quantized.blocks, num_threads);
    return {rows != 0 ? rows : all_rows, rows != 0, rows == 0};
  }
  if (!quantized.is_wanted() && output.data != nullptr) {
    return {all_rows, false, false};
  }
  const int64_t bytes_per_row = output.cols * (element_size_bytes(output.dtype) + 1) + 1;
  return {std::clamp<int64_t>(kSlabBytes / bytes_per_row, 1, kMaxSlabRows), false, false};
}

ResultRows::ResultRows(const TensorView& output, const QuantizedOutput& quantized, int num_threads)
    : output_(output),
      quantized_(quantized),
      num_threads_(std::max(num_threads, 1)),
      row_bytes_(output.cols * element_size_bytes(output.dtype)),
      slabs_(choose_slabs(output, quantized, num_threads_)),
      block_quantizer_(slabs_.are_aligned
                           ? std::optional<BlockQuantizer>(std::in_place, quantized.blocks, output)
                           : std::nullopt),
      scale_(quantized.scale != nullptr ? *quantized.scale : 1.0F),
      buffer_(output.data != nullptr
                  ? 0
                  : (slabs_.are_blocks_left ? 1 : num_threads_) * slabs_.rows * row_bytes_) {}

char* ResultRows::slab_address(int64_t first_row, int thread) {
  if (output_.data != nullptr) {
    return static_cast<char*>(output_.data) + first_row * row_bytes_;
  }
  const int64_t buffer_row = slabs_.are_blocks_left ? first_row : thread * slabs_.rows;
  return buffer_.data() + buffer_row * row_bytes_;
}

void ResultRows::quantize_slab_in_blocks(int64_t row, int64_t rows, const char* values) const {
  const int64_t cols = output_.cols;
  const int64_t tile_cols = tile_limits(block_quantizer_->block()).cols;
  for (int64_t col = 0; col < cols; col += tile_cols) {
    block_quantizer_->quantize_tile(values + col * element_size_bytes(output_.dtype), cols, row,
                                    col, rows, std::min(tile_cols, cols - col));
  }
}

void ResultRows::quantize_slab(int64_t row, int64_t rows, const void* values) {
  if (!quantized_.is_per_tensor()) {
    return;
  }
  const CastKernels& kernels = TE_CPU_KERNELS(cast_kernels);
  const int value_index = high_precision_index(output_.dtype);
  const int64_t cols = output_.cols;
  auto* data = static_cast<uint8_t*>(quantized_.data.data);
  auto* transpose = static_cast<uint8_t*>(quantized_.data_transpose.data);
  if (data == nullptr && transpose == nullptr) {
    amax_.add(kernels.amax[value_index](values, rows * cols));
    return;
  }
  const DType format = data != nullptr ? quantized_.data.dtype : quantized_.data_transpose.dtype;
  const auto quantize = kernels.quantize[value_index][fp8_index(format)];
  const int64_t tile_cols = transpose != nullptr ? kTileCols : cols;
  alignas(64) uint8_t codes[kMaxSlabRows * kTileCols];
  for (int64_t col = 0; col < cols; col += tile_cols) {
    const QuantizeTile tile{
        .input = static_cast<const char*>(values) + col * element_size_bytes(output_.dtype),
        .input_stride = cols,
        .output = data != nullptr ? data + row * cols + col : codes,
        .output_stride = data != nullptr ? cols : kTileCols,
        .rows = rows,
        .cols = std::min(tile_cols, cols - col),
        .scale = scale_,
        .stream = false};
    amax_.add(quantize(tile));
    if (transpose != nullptr) {
      kernels.transpose({.input = tile.output,
                         .input_stride = tile.output_stride,
                         .output = transpose + col * output_.rows + row,
                         .output_stride = output_.rows,
                         .rows = rows,
                         .cols = tile.cols,
                         .stream = false});
    }
  }
}

void ResultRows::finish() {
  if (slabs_.are_blocks_left) {
    TensorView values = output_;
    values.data = slab_address(0, 0);
    quantize_blocks(values, quantized_.blocks, num_threads_);
  }
  if (quantized_.amax != nullptr) {
    *quantized_.amax = numerics::max_skip_nan(*quantized_.amax, amax_.value());
  }
  if (quantized_.scale_inv != nullptr) {
    *quantized_.scale_inv = numerics::inverse_scale(scale_);
  }
}

}  // namespace transformer_engine::cpu
