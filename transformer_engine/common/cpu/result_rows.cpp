// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/result_rows.h"

#include <algorithm>

#include "cpu/cast_kernels.h"
#include "cpu/io_index.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu {

namespace {

// A block and its codes stay in half of a 1 MiB second-level cache.
constexpr int64_t kBlockBytes = int64_t{512} << 10;
// 64 rows make whole cache lines of the transpose; more bring nothing.
constexpr int64_t kMaxBlockRows = 64;
// Columns quantized before they are transposed: 64 x 256 codes are 16 KiB, half of a small L1.
constexpr int64_t kTileCols = 256;

int64_t choose_block_rows(const TensorView& output, const QuantizedOutput& quantized) {
  if (!quantized.is_wanted() && output.data != nullptr) {
    return std::max<int64_t>(output.rows, 1);
  }
  const int64_t bytes_per_row = output.cols * (element_size_bytes(output.dtype) + 1) + 1;
  return std::clamp<int64_t>(kBlockBytes / bytes_per_row, 1, kMaxBlockRows);
}

}  // namespace

ResultRows::ResultRows(const TensorView& output, const QuantizedOutput& quantized, int num_threads)
    : output_(output),
      quantized_(quantized),
      row_bytes_(output.cols * element_size_bytes(output.dtype)),
      block_rows_(choose_block_rows(output, quantized)),
      scale_(quantized.scale != nullptr ? *quantized.scale : 1.0F),
      buffer_(output.data == nullptr ? std::max(num_threads, 1) * block_rows_ * row_bytes_ : 0) {}

void* ResultRows::address_of(int64_t row, int thread) {
  return output_.data != nullptr ? static_cast<char*>(output_.data) + row * row_bytes_
                                 : buffer_.data() + thread * block_rows_ * row_bytes_;
}

void ResultRows::quantize_block(int64_t row, int64_t rows, const void* values) {
  if (!quantized_.is_wanted()) {
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
  alignas(64) uint8_t codes[kMaxBlockRows * kTileCols];
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
  if (quantized_.amax != nullptr) {
    *quantized_.amax = numerics::max_skip_nan(*quantized_.amax, amax_.value());
  }
  if (quantized_.scale_inv != nullptr) {
    *quantized_.scale_inv = numerics::inverse_scale(scale_);
  }
}

}  // namespace transformer_engine::cpu
