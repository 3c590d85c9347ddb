// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splits the NVFP4 ops over threads: amax by runs of elements, or by groups of 16 rows where the
// columnwise copy is transformed first; quantization by tiles.
#include "cpu/nvfp4.h"

#include <algorithm>

#include "core/scratch.h"
#include "cpu/cast_kernels.h"
#include "cpu/io_index.h"
#include "cpu/nvfp4_kernels.h"
#include "cpu/row_work.h"
#include "cpu/shared_maximum.h"

namespace transformer_engine::cpu {

namespace {

constexpr int64_t kBlock = numerics::kNvfp4Block;

// Codes of this size are written around the caches (cpu/cast.cpp has the measurements).
constexpr int64_t kStreamBytes = int64_t{2} << 20;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

const void* element_address(const TensorView& view, int64_t row, int64_t col) {
  return static_cast<const char*>(view.data) +
         (row * view.cols + col) * element_size_bytes(view.dtype);
}

void amax_per_row(const TensorView& input, float* amax, int num_threads) {
  const auto kernel = TE_CPU_KERNELS(cast_kernels).amax[high_precision_index(input.dtype)];
  parallel_for(input.rows, row_grain(input.cols), num_threads,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t row = begin; row < end; ++row) {
                   amax[row] = kernel(row_address(input, row), input.cols);
                 }
               });
}

float amax_of(const TensorView& input, int num_threads) {
  const auto kernel = TE_CPU_KERNELS(cast_kernels).amax[high_precision_index(input.dtype)];
  SharedMaximum amax;
  parallel_for(input.numel(), kGrainNumel, num_threads, [&](int64_t begin, int64_t end, int) {
    amax.add(kernel(element_address(input, 0, begin), end - begin));
  });
  return amax.value();
}

HadamardAmax hadamard_amax(const HadamardKernels& kernels, const QuantizeNvfp4Args& args,
                           int num_threads) {
  const TensorView& input = args.input;
  const auto kernel = kernels.amax[high_precision_index(input.dtype)];
  const int64_t grain = ceil_divide(row_grain(input.cols), kBlock) * kBlock;
  SharedMaximum before;
  SharedMaximum after;
  parallel_for(input.rows, grain, num_threads, [&](int64_t begin, int64_t end, int) {
    const HadamardAmax amax = kernel({.input = row_address(input, begin),
                                      .input_stride = input.cols,
                                      .rows = end - begin,
                                      .cols = input.cols,
                                      .signs = args.hadamard_signs});
    before.add(amax.before);
    after.add(amax.after);
  });
  return {before.value(), after.value()};
}

// numerics::Nvfp4Scale of a copy's amax: one, or one per row and some more that are never used, up
// to whole blocks.
class TensorScales {
 public:
  explicit TensorScales(const BlockScaledMatrix& copy)
      : count_(copy.scales.is_row_scaled ? copy.data.rows : 1),
        scales_(ceil_divide(count_, kBlock) * kBlock) {
    for (int64_t i = 0; i < count_ && copy.is_wanted(); ++i) {
      scales_.data()[i] = numerics::nvfp4_scale(copy.scales.amax[i], copy.scales.e4m3_max);
    }
    std::fill(scales_.data() + count_, scales_.data() + ceil_divide(count_, kBlock) * kBlock,
              numerics::Nvfp4Scale{1.0F, 1.0F, 1.0F});
  }
  const numerics::Nvfp4Scale* data() { return scales_.data(); }

 private:
  const int64_t count_;
  Scratch<numerics::Nvfp4Scale> scales_;
};

// The part of a copy that starts at (row, col), as stored.
Nvfp4CopyTile copy_tile(const BlockScaledMatrix& copy, TensorScales& tensor, int64_t row,
                        int64_t col) {
  if (!copy.is_wanted()) {
    return {};
  }
  const BlockScales& scales = copy.scales;
  const int64_t stride_bytes = row_size_bytes(copy.data.dtype, copy.data.cols);
  return {.data = static_cast<uint8_t*>(copy.data.data) + row * stride_bytes + col / 2,
          .data_stride_bytes = stride_bytes,
          .scales = static_cast<uint8_t*>(scales.data) + scales.index(row, col),
          .scale_row_stride = scales.row_stride,
          .scale_col_stride = scales.col_stride,
          .tensor = tensor.data() + (scales.is_row_scaled ? row : 0),
          .is_row_scaled = scales.is_row_scaled};
}

}  // namespace

void compute_nvfp4_amax(const Nvfp4AmaxProblem& problem, const Context& context) {
  compute_nvfp4_amax(TE_CPU_KERNELS(hadamard_kernels), problem.quantize, context.num_threads);
}

void quantize_nvfp4(const QuantizeNvfp4Args& args, const Context& context) {
  quantize_nvfp4(TE_CPU_KERNELS(nvfp4_kernels), args, context.num_threads);
}

void compute_nvfp4_amax(const HadamardKernels& kernels, const QuantizeNvfp4Args& args,
                        int num_threads) {
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  const BlockScales& rowwise = args.rowwise.scales;
  float* columnwise_amax = args.columnwise.scales.amax;
  if (rowwise.amax != nullptr && rowwise.is_row_scaled) {
    amax_per_row(args.input, rowwise.amax, num_threads);
  }
  float* rowwise_amax = rowwise.is_row_scaled ? nullptr : rowwise.amax;
  if (rowwise_amax == nullptr && columnwise_amax == nullptr) {
    return;
  }
  HadamardAmax amax = {};
  if (columnwise_amax != nullptr && args.has_hadamard) {
    amax = hadamard_amax(kernels, args, num_threads);
  } else {
    amax.before = amax_of(args.input, num_threads);
    amax.after = amax.before;
  }
  if (rowwise_amax != nullptr) {
    *rowwise_amax = amax.before;
  }
  if (columnwise_amax != nullptr) {
    *columnwise_amax = amax.after;
  }
}

void quantize_nvfp4(const Nvfp4Kernels& kernels, const QuantizeNvfp4Args& args, int num_threads) {
  const TensorView& input = args.input;
  if ((args.noop != nullptr && *args.noop != 0.0F) || input.numel() == 0) {
    return;
  }
  const auto kernel = kernels.quantize[high_precision_index(input.dtype)];
  TensorScales rowwise_scales(args.rowwise);
  TensorScales columnwise_scales(args.columnwise);
  const int64_t tiles_per_col = ceil_divide(input.rows, kNvfp4TileRows);
  const int64_t tiles = tiles_per_col * ceil_divide(input.cols, kNvfp4TileCols);
  const int64_t tile_numel = kNvfp4TileRows * std::min(input.cols, kNvfp4TileCols);
  const int64_t grain = ceil_divide(kGrainNumel, tile_numel);
  parallel_for(tiles, grain, num_threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      // Downwards: the next rows are asked for early, and a page of columnwise codes is filled.
      const int64_t row = tile % tiles_per_col * kNvfp4TileRows;
      const int64_t col = tile / tiles_per_col * kNvfp4TileCols;
      kernel({.input = element_address(input, row, col),
              .input_stride = input.cols,
              .rows = std::min(input.rows - row, kNvfp4TileRows),
              .cols = std::min(input.cols - col, kNvfp4TileCols),
              .first_row = row,
              .first_col = col,
              .rowwise = copy_tile(args.rowwise, rowwise_scales, row, col),
              .columnwise = copy_tile(args.columnwise, columnwise_scales, col, row),
              .options = &args,
              .stream = input.numel() / 2 >= kStreamBytes});
    }
  });
}

}  // namespace transformer_engine::cpu
