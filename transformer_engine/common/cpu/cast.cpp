// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splits cast ops over threads. Without a transpose the matrix is one run of elements. With one it
// is cut into square tiles: a tile is quantized once, into the row-wise output or a buffer, and
// transposed from there, so that the input is read once.
#include "cpu/cast.h"

#include "core/parallel.h"
#include "cpu/cast_kernels.h"
#include "cpu/io_index.h"
#include "cpu/shared_maximum.h"
#include "numerics/delayed_scaling.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu {

namespace {

// Elements below which a thread costs more than it brings (about 2 us of work); whole cache lines.
constexpr int64_t kGrain = 16384;

// A tile touches one page of memory per row of input and per row of output, so that a square one
// needs the fewest address translations for its size; 256 x 256 codes are 64 KiB, a part of L2.
// Measured against 64 x 256: 1.2 to 1.4 times as fast for 4096 x 4096.
constexpr int64_t kTileSize = 256;

// Outputs of this size are written around the caches: they do not fit beside the input, and the old
// contents are then not read. Row-wise that pays from a good part of the last-level cache on (16
// to 32 MiB on common processors); transposed, where the lines of a tile lie a whole row apart and
// push each other out of the same cache sets, much earlier (2048 x 2048: twice as fast).
constexpr int64_t kStreamBytes = int64_t{8} << 20;
constexpr int64_t kStreamDequantizedBytes = int64_t{32} << 20;  // what is read again at once
constexpr int64_t kStreamTransposeBytes = int64_t{2} << 20;

const char* element_address(const TensorView& view, int64_t index) {
  return static_cast<const char*>(view.data) + index * element_size_bytes(view.dtype);
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

float max_magnitude(const TensorView& input, int num_threads) {
  const auto kernel = TE_CPU_KERNELS(cast_kernels).amax[high_precision_index(input.dtype)];
  SharedMaximum amax;
  parallel_for(input.numel(), kGrain, num_threads, [&](int64_t begin, int64_t end, int) {
    amax.add(kernel(element_address(input, begin), end - begin));
  });
  return amax.value();
}

float quantize_rowwise(const QuantizeArgs& args, float scale, int num_threads) {
  const TensorView& input = args.input;
  const TensorView& data = args.output.data;
  const auto kernel = TE_CPU_KERNELS(cast_kernels)
                          .quantize[high_precision_index(input.dtype)][fp8_index(data.dtype)];
  SharedMaximum amax;
  parallel_for(input.numel(), kGrain, num_threads, [&](int64_t begin, int64_t end, int) {
    const QuantizeTile run{.input = element_address(input, begin),
                           .input_stride = 0,
                           .output = static_cast<uint8_t*>(data.data) + begin,
                           .output_stride = 0,
                           .rows = 1,
                           .cols = end - begin,
                           .scale = scale,
                           .stream = input.numel() >= kStreamBytes};
    amax.add(kernel(run));
  });
  return amax.value();
}

// Calls body(row, col, rows, cols) for every tile of a [rows, cols] matrix.
template <typename Body>
void parallel_for_tiles(int64_t rows, int64_t cols, int num_threads, const Body& body) {
  const int64_t tiles_per_row = ceil_divide(cols, kTileSize);
  const int64_t tiles = ceil_divide(rows, kTileSize) * tiles_per_row;
  parallel_for(tiles, 1, num_threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / tiles_per_row * kTileSize;
      const int64_t col = tile % tiles_per_row * kTileSize;
      body(row, col, rows - row < kTileSize ? rows - row : kTileSize,
           cols - col < kTileSize ? cols - col : kTileSize);
    }
  });
}

float quantize_with_transpose(const QuantizeArgs& args, float scale, int num_threads) {
  const TensorView& input = args.input;
  const TensorView& data = args.output.data;
  const TensorView& data_transpose = args.output.data_transpose;
  const CastKernels& kernels = TE_CPU_KERNELS(cast_kernels);
  const auto kernel =
      kernels.quantize[high_precision_index(input.dtype)][fp8_index(data_transpose.dtype)];
  SharedMaximum amax;
  parallel_for_tiles(
      input.rows, input.cols, num_threads,
      [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
        alignas(64) uint8_t buffer[kTileSize * kTileSize];
        const int64_t offset = row * input.cols + col;
        const bool is_rowwise = data.data != nullptr;
        const QuantizeTile tile{
            .input = element_address(input, offset),
            .input_stride = input.cols,
            .output = is_rowwise ? static_cast<uint8_t*>(data.data) + offset : buffer,
            .output_stride = is_rowwise ? input.cols : kTileSize,
            .rows = rows,
            .cols = cols,
            .scale = scale,
            .stream = false};  // the transpose reads the codes back
        amax.add(kernel(tile));
        kernels.transpose(
            {.input = tile.output,
             .input_stride = tile.output_stride,
             .output = static_cast<uint8_t*>(data_transpose.data) + col * input.rows + row,
             .output_stride = input.rows,
             .rows = rows,
             .cols = cols,
             .stream = input.numel() >= kStreamTransposeBytes});
      });
  return amax.value();
}

}  // namespace

void quantize(const QuantizeArgs& args, const Context& context) {
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  const QuantizedOutput& output = args.output;
  const float scale = output.scale != nullptr ? *output.scale : 1.0F;
  const int threads = context.num_threads;
  float amax = 0.0F;
  if (args.input.numel() != 0) {
    amax = output.data_transpose.data != nullptr ? quantize_with_transpose(args, scale, threads)
           : output.data.data != nullptr         ? quantize_rowwise(args, scale, threads)
                                                 : max_magnitude(args.input, threads);
  }
  if (output.amax != nullptr) {
    *output.amax = numerics::max_skip_nan(*output.amax, amax);
  }
  if (output.scale_inv != nullptr) {
    *output.scale_inv = numerics::inverse_scale(scale);
  }
}

void dequantize(const DequantizeArgs& args, const Context& context) {
  const float scale_inv = args.scale_inv != nullptr ? *args.scale_inv : 1.0F;
  const auto kernel =
      TE_CPU_KERNELS(cast_kernels)
          .dequantize[high_precision_index(args.output.dtype)][fp8_index(args.input.dtype)];
  const int64_t output_bytes = args.input.numel() * element_size_bytes(args.output.dtype);
  char* output = static_cast<char*>(args.output.data);
  const int64_t element_bytes = element_size_bytes(args.output.dtype);
  parallel_for(args.input.numel(), kGrain, context.num_threads,
               [&](int64_t begin, int64_t end, int) {
                 kernel({.input = static_cast<const uint8_t*>(args.input.data) + begin,
                         .output = output + begin * element_bytes,
                         .numel = end - begin,
                         .scale_inv = scale_inv,
                         .stream = output_bytes >= kStreamDequantizedBytes});
               });
}

void transpose_bytes(const TransposeArgs& args, const Context& context) {
  const TensorView& input = args.input;
  const CastKernels& kernels = TE_CPU_KERNELS(cast_kernels);
  parallel_for_tiles(
      input.rows, input.cols, context.num_threads,
      [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
        kernels.transpose(
            {.input = static_cast<const uint8_t*>(input.data) + row * input.cols + col,
             .input_stride = input.cols,
             .output = static_cast<uint8_t*>(args.output.data) + col * input.rows + row,
             .output_stride = input.rows,
             .rows = rows,
             .cols = cols,
             .stream = input.numel() >= kStreamTransposeBytes});
      });
}

void compute_amax(const AmaxArgs& args, const Context& context) {
  *args.amax = max_magnitude(args.input, context.num_threads);
}

void delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context) {
  constexpr int64_t kColumnsPerLine = 16;  // threads share no cache line of a history row
  const numerics::DelayedScaling rule{
      .numerator = numerics::delayed_scaling_numerator(args.fp8_max, args.margin),
      .most_recent = args.algo == AmaxComputeAlgo::kMostRecent};
  const int64_t rows = args.amax_history.rows;
  const int64_t columns = args.amax_history.cols;
  if (columns == 0) {
    return;
  }
  float* history = static_cast<float*>(args.amax_history.data);
  const int64_t grain = ceil_divide(kGrain, rows * kColumnsPerLine) * kColumnsPerLine;
  parallel_for(columns, grain, context.num_threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t column = begin; column < end; ++column) {
      const float local = history[column];
      const float reduced = args.reduced_amax != nullptr ? args.reduced_amax[column] : local;
      args.scale[column] = numerics::update_delayed_scaling(history + column, rows, columns,
                                                            numerics::step_amax(reduced, local),
                                                            args.scale[column], rule);
    }
  });
}

}  // namespace transformer_engine::cpu
