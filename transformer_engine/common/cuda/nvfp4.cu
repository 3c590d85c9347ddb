// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// compute_nvfp4_amax and quantize_nvfp4 of transformer_engine/block_scaling.h, by the rules of
// numerics/nvfp4.h, bit for bit. Each reads the input once: device/nvfp4_amax.h and
// device/nvfp4_quantize.h say how the work is split and count the bytes.
#include <transformer_engine/block_scaling.h>

#include "core/nvfp4_amax.h"
#include "cuda/candidate.h"
#include "cuda/device/nvfp4_amax.h"
#include "cuda/device/nvfp4_quantize.h"
#include "cuda/dispatch.h"
#include "cuda/runtime.h"

namespace transformer_engine::cuda {

namespace {

using namespace nvfp4;

// What the atomics of the kernels of amax start from. One thread.
__global__ void nvfp4_amax_start(const Amaxes amaxes) {
  if (amaxes.is_noop()) {
    return;
  }
  if (amaxes.rowwise != nullptr) {
    *amaxes.rowwise = 0.0F;
  }
  if (amaxes.columnwise != nullptr) {
    *amaxes.columnwise = 0.0F;
  }
}

template <class T>
void amax_of_segments(const TensorView& input, const Segments& segments, const Amaxes& amaxes,
                      const Context& context) {
  const Launch config{.name = "nvfp4_amax_segments",
                      .grid = dim3(grid_stride_blocks(segments.count, 1, context.device_index)),
                      .block = dim3(kAmaxThreads),
                      .stream = stream_of(context)};
  for_bool(has_aligned_rows(input.data, segments.length, sizeof(T)), [&](auto aligned) {
    launch(&nvfp4_amax_segments<T, aligned()>, config, data_of<const T>(input), segments, amaxes);
  });
}

template <class T>
void amax_of_transform(const QuantizeNvfp4Args& args, const Amaxes& amaxes,
                       const Context& context) {
  const TensorView& input = args.input;
  const int64_t items = divide_up<int64_t>(input.rows, numerics::kHadamardSize) *
                        divide_up<int64_t>(input.cols, kAmaxChunk);
  const Launch config{.name = "nvfp4_amax_transformed",
                      .grid = dim3(grid_stride_blocks(items, 1, context.device_index)),
                      .block = dim3(kAmaxThreads),
                      .stream = stream_of(context)};
  const int64_t vector_bytes = kAmaxColumns * static_cast<int64_t>(sizeof(T));
  for_bool(has_aligned_rows(input.data, input.cols, sizeof(T), vector_bytes), [&](auto aligned) {
    launch(&nvfp4_amax_transformed<T, aligned()>, config, data_of<const T>(input), input.rows,
           input.cols, args.hadamard_signs, amaxes);
  });
}

void run_amax(const Nvfp4AmaxProblem& problem, const Context& context) {
  const QuantizeNvfp4Args& args = problem.quantize;
  const TensorView& input = args.input;
  const BlockScales& rowwise = args.rowwise.scales;
  const Amaxes amaxes{.rowwise = rowwise.is_row_scaled ? nullptr : rowwise.amax,
                      .columnwise = args.columnwise.scales.amax,
                      .rows = rowwise.is_row_scaled ? rowwise.amax : nullptr,
                      .noop = args.noop};
  launch(&nvfp4_amax_start,
         {.name = "nvfp4_amax_start", .grid = 1, .block = 1, .stream = stream_of(context)}, amaxes);
  for_high_precision(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (amaxes.rows != nullptr) {
      amax_of_segments<T>(input, {input.rows, input.cols, input.numel()}, amaxes, context);
    } else if (args.has_hadamard && amaxes.columnwise != nullptr) {
      amax_of_transform<T>(args, amaxes, context);
    } else {
      constexpr int64_t kSegment = 4 * kAmaxThreads * kVectorSize<T>;
      amax_of_segments<T>(input,
                          {divide_up<int64_t>(input.numel(), kSegment), kSegment, input.numel()},
                          amaxes, context);
    }
  });
}

int codes_alignment(const BlockScaledMatrix& copy, int64_t blocks) {
  for (const int bytes : {16, 8}) {
    if (has_aligned_rows(copy.data.data, blocks, sizeof(Codes), bytes)) {
      return bytes;
    }
  }
  return 1;
}

Output output_of(const BlockScaledMatrix& copy, int64_t rows, int64_t cols) {
  const int64_t blocks = divide_up<int64_t>(cols, kBlock);
  return {.data = data_of<uint8_t>(copy.data),
          .scales = static_cast<uint8_t*>(copy.scales.data),
          .row_stride = copy.scales.row_stride,
          .col_stride = copy.scales.col_stride,
          .amax = copy.scales.amax,
          .e4m3_max = copy.scales.e4m3_max,
          .is_row_scaled = copy.scales.is_row_scaled,
          .rows = rows,
          .blocks = blocks,
          .alignment = codes_alignment(copy, blocks)};
}

// Calls body(std::integral_constant<Mode>).
template <class Body>
void for_mode(const QuantizeNvfp4Args& args, const Body& body) {
  if (args.is_stochastic) {
    return body(std::integral_constant<Mode, Mode::kStochastic>{});
  }
  if (args.four_over_six != FourOverSix::kNone) {
    return body(std::integral_constant<Mode, Mode::kFourOverSix>{});
  }
  return body(std::integral_constant<Mode, Mode::kNearest>{});
}

void run_quantize(const QuantizeNvfp4Args& args, const Context& context) {
  const TensorView& input = args.input;
  if (input.numel() == 0) {
    return;
  }
  const Options options{
      .rule = {.has_square_tiles = args.has_square_tiles,
               .is_squared = args.four_over_six == FourOverSix::kMeanSquaredError},
      .has_hadamard = args.has_hadamard,
      .hadamard_signs = args.hadamard_signs,
      .key = numerics::philox_key(args.seed),
      .seed = args.is_stochastic ? args.device_seed : nullptr,
      .noop = args.noop};
  const int64_t tile_columns = divide_up<int64_t>(input.cols, kTileCols);
  const Launch config{
      .name = "nvfp4_quantize",
      .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(input.rows, kTileRows) * tile_columns)),
      .block = dim3(kThreads),
      .stream = stream_of(context)};
  for_high_precision(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const TileSource<T> source{data_of<const T>(input), input.rows, input.cols,
                               has_aligned_rows(input.data, input.cols, sizeof(T))};
    for_mode(args, [&](auto mode) {
      launch(&nvfp4_quantize<T, mode()>, config, source,
             output_of(args.rowwise, input.rows, input.cols),
             output_of(args.columnwise, input.cols, input.rows), options,
             static_cast<int>(tile_columns));
    });
  });
}

}  // namespace

TE_CUDA_ENTRY_POINT(Nvfp4AmaxProblem, run_amax)
TE_CUDA_ENTRY_POINT(QuantizeNvfp4Args, run_quantize)

}  // namespace transformer_engine::cuda
