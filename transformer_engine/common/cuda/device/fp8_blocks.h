// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FP8 with one FP32 scale per block of the values of a source (device/source.h), all wanted outputs
// in one pass; rules: transformer_engine/block_scaling.h.
//   output[r, c]      the value, rounded to the source's element type
//   rowwise[r, c]     encode(value * scale), blocks 1 x 128 or tiles of 128 x 128
//   columnwise[c, r]  the same with scales of its own, blocks of 128 rows or tiles
// One block of 256 threads takes a tile of 128 x 128, which has whole blocks of both copies: 16
// threads a row, each with 8 rows of 8 elements in registers. Maxima of rows come from the 16
// lanes, those of columns through shared memory; only one lane per block divides. The columnwise
// codes are transposed in shared memory: a thread encodes 8 rows of a column at a time, which are
// neighbours there, and 8 threads write the 128 bytes that the tile has of it. Reads the source
// once, 8 loads of 16 bytes under way in each thread; writes one byte per element for each copy and
// 1/32 of a byte for its scales (1 x 128). Source: M. Micikevicius et al., FP8 Formats for Deep
// Learning (2022), for the formats; DeepSeek-V3 Technical Report (2024), section 3.3, the blocks.
#pragma once

#include "cuda/device/reduce.h"
#include "cuda/device/row_vector.h"
#include "cuda/dispatch.h"
#include "numerics/scale.h"

namespace transformer_engine::cuda {

namespace fp8_blocks {

constexpr int kTile = 128;
constexpr int kThreads = 256;
constexpr int kThreadsPerRow = kTile / kSourceVector;
constexpr int kRowsPerThread = kTile / (kThreads / kThreadsPerRow);
static_assert(kRowsPerThread == kSourceVector);
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kColumnVector = 16;  // bytes of a column of the tile that a thread writes

struct Copy {  // as stored
  uint8_t* data;
  float* scale_inv;
  int64_t row_stride;  // of scale_inv, from block to block
  int64_t col_stride;
  bool is_tiled;  // blocks of 128 x 128, else 1 x 128
  bool are_powers_of_two;

  __device__ __forceinline__ void put_scale(int64_t block_row, int64_t block_col,
                                            float scale) const {
    scale_inv[block_row * row_stride + block_col * col_stride] = numerics::inverse_scale(scale);
  }
};

template <class T>
struct Problem {
  T* output;
  Copy rowwise;
  Copy columnwise;
  const float* noop;
  Extent extent;
  int64_t tile_columns;  // tiles side by side: block b has (b / tile_columns, b % tile_columns)
  float epsilon;
  bool is_e5m2;
  bool is_transpose_aligned;  // rows of the columnwise copy allow vectors of kColumnVector

  __device__ __forceinline__ float scale_of(float amax, const Copy& copy) const {
    return numerics::current_scaling_scale(amax, {.fp8_max = fp8_max_of(is_e5m2),
                                                  .epsilon = epsilon,
                                                  .power_of_two = copy.are_powers_of_two,
                                                  .largest = kLargest<T>});
  }
};

// Where a thread works: the tile, and its part of 8 x 8 in it.
struct Place {
  int64_t tile_row, tile_col;  // number of the tile
  int row_vector, col_vector;  // of the part in the tile, in units of kSourceVector

  __device__ __forceinline__ explicit Place(int64_t tile_columns)
      : tile_row(static_cast<int64_t>(blockIdx.x) / tile_columns),
        tile_col(static_cast<int64_t>(blockIdx.x) % tile_columns),
        row_vector(static_cast<int>(threadIdx.x) / kThreadsPerRow),
        col_vector(static_cast<int>(threadIdx.x) % kThreadsPerRow) {}
  __device__ __forceinline__ int64_t row(int i) const {
    return tile_row * kTile + row_vector * kSourceVector + i;
  }
  __device__ __forceinline__ int64_t col() const {
    return tile_col * kTile + col_vector * kSourceVector;
  }
};

// max |x| of a row of the tile: lane l of 16 has that of the thread's row l % 8.
__device__ __forceinline__ float amax_of_row(const PartAmax& part) {
  float four[4];
  float two[2];
  float one[1];
  reduce_halves<Max, 4>(part.of_row, four);
  reduce_halves<Max, 2>(four, two);
  reduce_halves<Max, 1>(two, one);
  return max_skip_nan(one[0], __shfl_xor_sync(kAllLanes, one[0], 8));
}

template <class T>
__device__ __forceinline__ void write_rowwise(const Problem<T>& problem, const Place& place,
                                              const Part<T>& values, const PartAmax& part,
                                              float tile_amax) {
  const Copy& copy = problem.rowwise;
  const Extent& extent = problem.extent;
  const float amax = copy.is_tiled ? tile_amax : amax_of_row(part);
  const float scale = problem.scale_of(amax, copy);
  if (copy.is_tiled) {
    if (threadIdx.x == 0) {
      copy.put_scale(place.tile_row, place.tile_col, scale);
    }
  } else if (place.col_vector < kRowsPerThread && place.row(place.col_vector) < extent.rows) {
    copy.put_scale(place.row(place.col_vector), place.tile_col, scale);
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const float row_scale = __shfl_sync(kAllLanes, scale, i, kThreadsPerRow);
    Products products;
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      products.v[j] = values[i].get(j) * row_scale;
    }
    const Codes codes = encode_codes(products, problem.is_e5m2);
    const int64_t row = place.row(i);
    if (extent.contains(row, place.col())) {
      store_bytes(codes, copy.data + row * extent.cols, place.col(), extent.cols,
                  extent.is_aligned);
    }
  }
}

struct alignas(16) ColumnWorkspace {
  float warp_amax[kWarps][kTile];
  float scale[kTile];
  // Column after column, 16 units of 8 rows each; unit u of a column stands at
  // u ^ (column / 8), so that the 16 threads which store one unit of 16 columns, and those which
  // load one column, spread over the banks.
  uint8_t codes[kTile][kTile];
};

// The scales of the thread's columns, each of a block of its own.
template <class T>
__device__ __forceinline__ void find_column_scales(const Problem<T>& problem, const Place& place,
                                                   const PartAmax& part, ColumnWorkspace& shared,
                                                   float (&scales)[kSourceVector]) {
  const int thread = static_cast<int>(threadIdx.x);
  Vec<float, 4> half;
  reduce_halves<Max, kThreadsPerRow>(part.of_col, half.v);
  const int half_col =
      place.col_vector * kSourceVector + (thread & kThreadsPerRow) / kThreadsPerRow * 4;
  half.store(&shared.warp_amax[thread / kWarpSize][half_col]);
  __syncthreads();
  if (thread < kTile) {
    float amax = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      amax = max_skip_nan(amax, shared.warp_amax[warp][thread]);
    }
    const float scale = problem.scale_of(amax, problem.columnwise);
    shared.scale[thread] = scale;
    const int64_t col = place.tile_col * kTile + thread;
    if (col < problem.extent.cols) {
      problem.columnwise.put_scale(col, place.tile_row, scale);
    }
  }
  __syncthreads();
  load_floats<kSourceVector, true>(&shared.scale[place.col_vector * kSourceVector], scales);
}

template <class T>
__device__ __forceinline__ void write_transposed(const Problem<T>& problem, const Place& place,
                                                 const ColumnWorkspace& shared) {
  constexpr int kThreadsPerColumn = kTile / kColumnVector;
  const Extent& extent = problem.extent;
  const int vector = static_cast<int>(threadIdx.x) % kThreadsPerColumn;
#pragma unroll
  for (int i = 0; i < kThreadsPerColumn * kTile / kThreads; ++i) {
    const int column =
        i * (kThreads / kThreadsPerColumn) + static_cast<int>(threadIdx.x) / kThreadsPerColumn;
    const int turn = column / kSourceVector;
    const auto* stored = &shared.codes[column][(vector ^ (turn / 2)) * kColumnVector];
    const auto units = Bytes<4>::load(reinterpret_cast<const uint32_t*>(stored));
    const bool is_swapped = turn % 2 != 0;
    Bytes<4> codes;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      codes.v[word] = is_swapped ? units.v[word ^ 2] : units.v[word];
    }
    const int64_t col = place.tile_col * kTile + column;
    if (col < extent.cols) {
      store_bytes(codes, problem.columnwise.data + col * extent.rows,
                  place.tile_row * kTile + vector * kColumnVector, extent.rows,
                  problem.is_transpose_aligned);
    }
  }
}

template <class T>
__device__ __forceinline__ void write_columnwise(const Problem<T>& problem, const Place& place,
                                                 const Part<T>& values, const PartAmax& part,
                                                 float tile_amax, ColumnWorkspace& shared) {
  const Copy& copy = problem.columnwise;
  float scales[kSourceVector];
  if (copy.is_tiled) {
    const float scale = problem.scale_of(tile_amax, copy);
    if (threadIdx.x == 0) {
      copy.put_scale(place.tile_col, place.tile_row, scale);
    }
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      scales[j] = scale;
    }
  } else {
    find_column_scales(problem, place, part, shared, scales);
  }
#pragma unroll
  for (int j = 0; j < kSourceVector; ++j) {
    Products products;
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      products.v[i] = values[i].get(j) * scales[j];
    }
    const int column = place.col_vector * kSourceVector + j;
    const int unit = place.row_vector ^ place.col_vector;
    encode_codes(products, problem.is_e5m2)
        .store(reinterpret_cast<uint32_t*>(&shared.codes[column][unit * kSourceVector]));
  }
  __syncthreads();
  write_transposed(problem, place, shared);
}

template <class Source, bool kHasColumnwise>
__global__ void __launch_bounds__(kThreads, 2)
    fp8_blocks_quantize(const Source source, const Problem<typename Source::Element> problem) {
  using T = typename Source::Element;
  if (problem.noop != nullptr && *problem.noop != 0.0F) {
    return;
  }
  const Place place(problem.tile_columns);
  Part<T> values;
  load_part(source, place, problem.extent, problem.output, values);
  const PartAmax part(values);
  float tile_amax = 0.0F;
  if (problem.rowwise.is_tiled || problem.columnwise.is_tiled) {
    __shared__ float warp_amax[kWarps];
    tile_amax = block_reduce<Max, kThreads>(part.of_all(), warp_amax);
  }
  if (problem.rowwise.data != nullptr) {
    write_rowwise(problem, place, values, part, tile_amax);
  }
  if constexpr (kHasColumnwise) {
    __shared__ ColumnWorkspace shared;
    if (!HasLongCode<Source> || problem.columnwise.data != nullptr) {
      write_columnwise(problem, place, values, part, tile_amax, shared);
    }
  }
}

inline Copy copy_of(const BlockScaledMatrix& matrix) {
  return {.data = data_of<uint8_t>(matrix.data),
          .scale_inv = static_cast<float*>(matrix.scales.data),
          .row_stride = matrix.scales.row_stride,
          .col_stride = matrix.scales.col_stride,
          .is_tiled = matrix.scales.block_rows != 1,
          .are_powers_of_two = matrix.scales.are_powers_of_two};
}

}  // namespace fp8_blocks

// Runs it for what is wanted of a [rows, cols] source; `output` is null where the rounded values
// are not wanted. Nothing is written where *noop is neither absent nor 0.
template <class Source>
void quantize_fp8_blocks(const Source& source, typename Source::Element* output,
                         const BlockQuantizedOutput& quantized, int64_t rows, int64_t cols,
                         const float* noop, cudaStream_t stream) {
  using namespace fp8_blocks;
  using T = typename Source::Element;
  if (rows == 0 || cols == 0) {
    return;
  }
  const Problem<T> problem{
      .output = output,
      .rowwise = copy_of(quantized.rowwise),
      .columnwise = copy_of(quantized.columnwise),
      .noop = noop,
      .extent = extent_of(source, rows, cols, output, {data_of<void>(quantized.rowwise.data)}),
      .tile_columns = divide_up<int64_t>(cols, kTile),
      .epsilon = quantized.epsilon,
      .is_e5m2 = any_copy(quantized).data.dtype == DType::kFloat8E5M2,
      .is_transpose_aligned =
          has_aligned_rows(quantized.columnwise.data.data, rows, 1, kColumnVector)};
  const Launch config{
      .name = "fp8_blocks_quantize",
      .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(rows, kTile) * problem.tile_columns)),
      .block = dim3(kThreads),
      .stream = stream};
  for_columnwise<Source>(quantized, [&](auto has_columnwise) {
    launch(&fp8_blocks_quantize<Source, has_columnwise()>, config, source, problem);
  });
}

}  // namespace transformer_engine::cuda
