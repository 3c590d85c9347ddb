// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What an op does with its result, a source (device/source.h): stores the rounded values, quantizes
// them in FP8 blocks or as MXFP8, or both, in one pass; per tensor: device/per_tensor.h.
// For the values alone a block of 256 threads takes 32 x 256 elements, each warp a row at a time
// and each thread 8 elements of it, with four rows under way.
#pragma once

#include "cuda/device/fp8_blocks.h"
#include "cuda/device/mxfp8.h"

namespace transformer_engine::cuda {

namespace values_alone {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kTileCols = kWarpSize * kSourceVector;
constexpr int kRowsPerThread = 4;
constexpr int kTileRows = kWarps * kRowsPerThread;

template <class Source>
__global__ void __launch_bounds__(kThreads)
    store_source(const Source source, typename Source::Element* __restrict__ output,
                 const float* noop, const Extent extent, const int64_t tile_columns) {
  using T = typename Source::Element;
  if (noop != nullptr && *noop != 0.0F) {
    return;
  }
  const int64_t row = static_cast<int64_t>(blockIdx.x) / tile_columns * kTileRows +
                      static_cast<int64_t>(threadIdx.x) / kWarpSize;
  const int64_t col = static_cast<int64_t>(blockIdx.x) % tile_columns * kTileCols +
                      static_cast<int64_t>(threadIdx.x) % kWarpSize * kSourceVector;
  RowVector<T> values[kRowsPerThread];
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    values[i] = load_row_vector(source, row + i * kWarps, col, extent);
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    store_row_vector(values[i], output, row + i * kWarps, col, extent);
  }
}

template <class Source>
void run(const Source& source, typename Source::Element* output, int64_t rows, int64_t cols,
         const float* noop, cudaStream_t stream) {
  const int64_t tile_columns = divide_up<int64_t>(cols, kTileCols);
  const Launch config{
      .name = "store_source",
      .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(rows, kTileRows) * tile_columns)),
      .block = dim3(kThreads),
      .stream = stream};
  launch(&store_source<Source>, config, source, output, noop, extent_of(source, rows, cols, output),
         tile_columns);
}

}  // namespace values_alone

// The copies of a source with one scale per block. `output` [rows, cols] takes the rounded values,
// null where they are not wanted. Nothing at all is written where *noop is neither absent nor 0.
template <class Source>
void quantize_source_blocks(const Source& source, typename Source::Element* output,
                            const BlockQuantizedOutput& blocks, int64_t rows, int64_t cols,
                            const float* noop, cudaStream_t stream) {
  if (any_copy(blocks).scales.dtype == DType::kFloat8E8M0) {
    quantize_mxfp8(source, output, blocks, rows, cols, noop, stream);
  } else {
    quantize_fp8_blocks(source, output, blocks, rows, cols, noop, stream);
  }
}

}  // namespace transformer_engine::cuda
