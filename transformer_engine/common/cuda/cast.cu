// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/cast.h. Without a transpose a matrix is a flat array: each thread
// takes 16 elements at a time in a grid-stride loop (16 bytes of FP8). With one:
// device/per_tensor.h.
#include <transformer_engine/cast.h>

#include "cuda/candidate.h"
#include "cuda/device/per_tensor.h"
#include "cuda/runtime.h"
#include "numerics/delayed_scaling.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kFlat = 16;  // elements of a thread's turn: 16 bytes of FP8

__device__ __forceinline__ int64_t first_flat() {
  return (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kFlat;
}
__device__ __forceinline__ int64_t flat_stride() {
  return static_cast<int64_t>(gridDim.x) * kThreads * kFlat;
}

template <class T, class Format, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    flat_quantize(const T* __restrict__ input, const PerTensorOutputs<T> outputs,
                  const int64_t numel) {
  __shared__ float warp_amax[kThreads / kWarpSize];
  if (outputs.noop != nullptr && *outputs.noop != 0.0F) {
    return;
  }
  const float scale = outputs.scale != nullptr ? *outputs.scale : 1.0F;
  float amax = 0.0F;
  for (int64_t i = first_flat(); i < numel; i += flat_stride()) {
    float values[kFlat];
    load_rounded<kFlat, kAligned>(MatrixSource<T>{input, numel}, 0, i, numel, values);
    amax = per_tensor::amax_of(values, amax);
    if (outputs.data != nullptr) {
      per_tensor::store_part<kAligned>(outputs.data, i, numel,
                                       per_tensor::encode_vector<Format>(values, scale));
    }
  }
  if (outputs.amax != nullptr) {
    amax = block_reduce<Max, kThreads>(amax, warp_amax);
    if (threadIdx.x == 0) {
      atomic_max_skip_nan(outputs.amax, amax);
    }
  }
  if (outputs.scale_inv != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *outputs.scale_inv = numerics::inverse_scale(scale);
  }
}

template <class T>
void quantize_flat(const T* input, const PerTensorOutputs<T>& outputs, DType format, int64_t numel,
                   const Context& context) {
  const Launch config{
      .name = "flat_quantize",
      .grid = dim3(grid_stride_blocks(numel, kThreads * kFlat, context.device_index)),
      .block = dim3(kThreads),
      .stream = stream_of(context)};
  const bool is_aligned = has_aligned_rows(input, 0, 1) && has_aligned_rows(outputs.data, 0, 1);
  for_fp8(format, [&](auto fp8) {
    for_bool(is_aligned, [&](auto aligned) {
      launch(&flat_quantize<T, typename decltype(fp8)::type, aligned()>, config, input, outputs,
             numel);
    });
  });
}

void run_quantize(const QuantizeArgs& args, const Context& context) {
  const TensorView& input = args.input;
  for_high_precision(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto outputs = per_tensor_outputs<T>(args.output, nullptr, args.noop);
    if (outputs.data_transpose == nullptr) {
      quantize_flat(data_of<const T>(input), outputs, args.output.data.dtype, input.numel(),
                    context);
      return;
    }
    quantize_per_tensor_transposed(MatrixSource<T>{data_of<const T>(input), input.cols}, outputs,
                                   input.rows, input.cols, stream_of(context));
  });
}

void run_amax(const AmaxArgs& args, const Context& context) {
  check_cuda(cudaMemsetAsync(args.amax, 0, sizeof(float), stream_of(context)), "cudaMemsetAsync",
             "compute_amax");
  for_high_precision(args.input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const PerTensorOutputs<T> outputs{.amax = args.amax};
    quantize_flat(data_of<const T>(args.input), outputs, DType::kFloat8E4M3, args.input.numel(),
                  context);
  });
}

template <class T, class Format, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    flat_dequantize(const uint8_t* __restrict__ input, const float* __restrict__ scale_inv,
                    T* __restrict__ output, const int64_t numel) {
  const float factor = scale_inv != nullptr ? *scale_inv : 1.0F;
  for (int64_t i = first_flat(); i < numel; i += flat_stride()) {
    Vec<uint8_t, kFlat> codes{};
    if (kAligned && i + kFlat <= numel) {
      codes = Vec<uint8_t, kFlat>::load(input + i);
    } else {
#pragma unroll
      for (int j = 0; j < kFlat; ++j) {
        codes.v[j] = i + j < numel ? input[i + j] : uint8_t{0};
      }
    }
    float values[kFlat];
#pragma unroll
    for (int j = 0; j < kFlat; ++j) {
      values[j] = decode_fp8<Format>(codes.v[j]) * factor;
    }
    per_tensor::store_floats_part<kAligned>(output, i, numel, values);
  }
}

void run_dequantize(const DequantizeArgs& args, const Context& context) {
  const int64_t numel = args.input.numel();
  if (numel == 0) {
    return;
  }
  const Launch config{
      .name = "flat_dequantize",
      .grid = dim3(grid_stride_blocks(numel, kThreads * kFlat, context.device_index)),
      .block = dim3(kThreads),
      .stream = stream_of(context)};
  const bool is_aligned =
      has_aligned_rows(args.input.data, 0, 1) && has_aligned_rows(args.output.data, 0, 1);
  for_high_precision(args.output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for_fp8(args.input.dtype, [&](auto fp8) {
      for_bool(is_aligned, [&](auto aligned) {
        launch(&flat_dequantize<T, typename decltype(fp8)::type, aligned()>, config,
               data_of<const uint8_t>(args.input), args.scale_inv, data_of<T>(args.output), numel);
      });
    });
  });
}

constexpr int kTransposeTile = 64;

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    transpose(const uint8_t* __restrict__ input, uint8_t* __restrict__ output, const int64_t rows,
              const int64_t cols, const int tile_columns) {
  using namespace per_tensor;
  static_assert(kTile == kTransposeTile);
  __shared__ uint8_t tile[kTile][kRowBytes];
  const int block = static_cast<int>(blockIdx.x);
  const int64_t row0 = static_cast<int64_t>(block / tile_columns) * kTile;
  const int64_t col0 = static_cast<int64_t>(block % tile_columns) * kTile;
  // Four bytes a thread, 16 threads a row of the tile: words, as the padded tile allows.
  constexpr int kWord = 4;
  const int tile_col = static_cast<int>(threadIdx.x) % (kTile / kWord) * kWord;
  const int64_t col = col0 + tile_col;
#pragma unroll
  for (int i = 0; i < kTile; i += kThreads / (kTile / kWord)) {
    const int tile_row = i + static_cast<int>(threadIdx.x) / (kTile / kWord);
    const int64_t row = row0 + tile_row;
    if (row >= rows || col >= cols) {
      continue;
    }
    const uint8_t* source = input + row * cols + col;
    if (kAligned && col + kWord <= cols) {
      Vec<uint8_t, kWord>::load(source).store(&tile[tile_row][tile_col]);
    } else {
      for (int j = 0; j < kWord && col + j < cols; ++j) {
        tile[tile_row][tile_col + j] = source[j];
      }
    }
  }
  __syncthreads();
  write_transposed<kAligned>(tile, output, row0, col0, rows, cols);
}

void run_transpose(const TransposeArgs& args, const Context& context) {
  const TensorView& input = args.input;
  if (input.numel() == 0) {
    return;
  }
  const int64_t tile_columns = divide_up<int64_t>(input.cols, kTransposeTile);
  const Launch config{.name = "transpose",
                      .grid = dim3(static_cast<unsigned>(
                          divide_up<int64_t>(input.rows, kTransposeTile) * tile_columns)),
                      .block = dim3(kThreads),
                      .stream = stream_of(context)};
  const bool is_aligned = has_aligned_rows(input.data, input.cols, 1, 4) &&
                          has_aligned_rows(args.output.data, input.rows, 1);
  for_bool(is_aligned, [&](auto aligned) {
    launch(&transpose<aligned()>, config, data_of<const uint8_t>(input),
           data_of<uint8_t>(args.output), input.rows, input.cols, static_cast<int>(tile_columns));
  });
}

__global__ void scale_from_amax(const float* amax, float* scale, float* scale_inv,
                                const numerics::CurrentScaling rule) {
  const float value = numerics::current_scaling_scale(*amax, rule);
  *scale = value;
  if (scale_inv != nullptr) {
    *scale_inv = numerics::inverse_scale(value);
  }
}

void run_scale_from_amax(const ScaleFromAmaxArgs& args, const Context& context) {
  const numerics::CurrentScaling rule{
      .fp8_max = args.fp8_max, .epsilon = args.epsilon, .power_of_two = args.power_of_two};
  launch(&scale_from_amax,
         {.name = "scale_from_amax", .grid = 1, .block = 1, .stream = stream_of(context)},
         args.amax, args.scale, args.scale_inv, rule);
}

// One thread per column of the history, which is one quantized tensor.
__global__ void __launch_bounds__(kThreads)
    update_scales(float* history, const int64_t length, const int64_t columns,
                  const float* reduced_amax, float* scale, const numerics::DelayedScaling rule) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) {
    return;
  }
  float* own = history + column;
  const float reduced = reduced_amax != nullptr ? reduced_amax[column] : own[0];
  const float amax = numerics::step_amax(reduced, own[0]);
  scale[column] = numerics::update_delayed_scaling(own, length, columns, amax, scale[column], rule);
}

void run_delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context) {
  const TensorView& history = args.amax_history;
  if (history.cols == 0) {
    return;
  }
  const numerics::DelayedScaling rule{
      .numerator = numerics::delayed_scaling_numerator(args.fp8_max, args.margin),
      .most_recent = args.algo == AmaxComputeAlgo::kMostRecent};
  launch(&update_scales,
         {.name = "update_scales",
          .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(history.cols, kThreads))),
          .block = dim3(kThreads),
          .stream = stream_of(context)},
         data_of<float>(history), history.rows, history.cols, args.reduced_amax, args.scale, rule);
}

}  // namespace

TE_CUDA_ENTRY_POINT(QuantizeArgs, run_quantize)
TE_CUDA_ENTRY_POINT(DequantizeArgs, run_dequantize)
TE_CUDA_ENTRY_POINT(TransposeArgs, run_transpose)
TE_CUDA_ENTRY_POINT(AmaxArgs, run_amax)
TE_CUDA_ENTRY_POINT(ScaleFromAmaxArgs, run_scale_from_amax)
TE_CUDA_ENTRY_POINT(DelayedScalingUpdateArgs, run_delayed_scaling_update)

}  // namespace transformer_engine::cuda
