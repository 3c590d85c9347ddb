// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// MXFP8 (OCP Microscaling Formats (MX) Specification 1.0, 2023) of the values of a source
// (device/source.h), all wanted outputs in one pass; rules: transformer_engine/block_scaling.h.
//   output[r, c]      the value, rounded to the source's element type
//   rowwise[r, c]     encode(value * 2^(127 - code)), one code per 1 x 32
//   columnwise[r, c]  the same with codes of its own, one per 32 x 1
// With square tiles both have the code of the 32 x 32 tile. One warp takes 32 rows of 64 columns,
// which are whole blocks of both copies: 8 lanes a row, each with 8 rows of 8 elements in
// registers; 4 lanes meet for the maximum of a block along a row, 4 others for one along a column.
// Four warps, side by side, form a block: the codes of its rows go through shared memory, so that 8
// neighbours are written at a time. Reads the source once, 8 loads of 16 bytes under way in each
// thread; writes one byte per element for each copy and 1/32 of a byte for its codes.
#pragma once

#include "cuda/device/reduce.h"
#include "cuda/device/row_vector.h"
#include "cuda/dispatch.h"
#include "numerics/scale.h"

namespace transformer_engine::cuda {

namespace mxfp8 {

constexpr int kBlock = 32;  // elements that share a code; rows of a warp's part
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kLanesPerRow = 8;
constexpr int kLanesPerColumn = kWarpSize / kLanesPerRow;
constexpr int kLanesPerBlock = kBlock / kSourceVector;  // of those of a row
constexpr int kRowsPerThread = kBlock / kLanesPerColumn;
static_assert(kRowsPerThread == kSourceVector && kLanesPerColumn == 4 && kLanesPerBlock == 4);
constexpr int kWarpCols = kLanesPerRow * kSourceVector;
constexpr int kTileCols = kWarps * kWarpCols;
constexpr int kTileBlocks = kTileCols / kBlock;

struct Copy {
  uint8_t* data;
  uint8_t* codes;
  int64_t row_stride;  // of codes, from block to block
  int64_t col_stride;

  __device__ __forceinline__ void put_code(int64_t block_row, int64_t block_col,
                                           uint8_t code) const {
    codes[block_row * row_stride + block_col * col_stride] = code;
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
  bool is_e5m2;
  bool has_square_tiles;

  __device__ __forceinline__ uint8_t code_of(float amax) const {
    return numerics::e8m0_from_amax(amax, fp8_max_of(is_e5m2));
  }
};

// Where a thread works. Its rows lie kLanesPerColumn apart: a load of the warp takes neighbours.
struct Place {
  int64_t tile_row, tile_col;  // number of the tile
  int lane_row, lane_col;      // of the lane in its warp

  __device__ __forceinline__ explicit Place(int64_t tile_columns)
      : tile_row(static_cast<int64_t>(blockIdx.x) / tile_columns),
        tile_col(static_cast<int64_t>(blockIdx.x) % tile_columns),
        lane_row(static_cast<int>(threadIdx.x) % kWarpSize / kLanesPerRow),
        lane_col(static_cast<int>(threadIdx.x) % kLanesPerRow) {}
  __device__ __forceinline__ int row_in_tile(int i) const { return lane_row + i * kLanesPerColumn; }
  __device__ __forceinline__ int64_t row(int i) const { return tile_row * kBlock + row_in_tile(i); }
  // The columns of the lanes of a row are neighbours, and so are those of the warps.
  __device__ __forceinline__ int col_in_tile() const {
    return static_cast<int>(threadIdx.x) / kWarpSize * kWarpCols + lane_col * kSourceVector;
  }
  __device__ __forceinline__ int64_t col() const { return tile_col * kTileCols + col_in_tile(); }
};

// Two codes of each of four lanes: lane q has those of numbers 2 q and 2 q + 1.
struct TwoCodes {
  uint8_t first, second;

  __device__ __forceinline__ uint32_t packed() const {
    return first | (static_cast<uint32_t>(second) << 8);
  }
  // What elements under code `i` of the eight are multiplied by; `packed` is that of lane i / 2.
  __device__ __forceinline__ static float scale_of(uint32_t packed, int i) {
    return numerics::reciprocal_e8m0(static_cast<uint8_t>(i % 2 == 0 ? packed : packed >> 8));
  }
};

// The codes of the blocks that the thread's rows or columns belong to, two in each lane.
template <int kDistance, class T>
__device__ __forceinline__ TwoCodes find_codes(const Problem<T>& problem,
                                               const float (&amax)[kSourceVector]) {
  float four[4];
  float two[2];
  reduce_halves<Max, 2 * kDistance>(amax, four);
  reduce_halves<Max, kDistance>(four, two);
  return {problem.code_of(two[0]), problem.code_of(two[1])};
}

__device__ __forceinline__ float amax_of_square(const PartAmax& part) {
  float amax = warp_reduce<Max, kLanesPerBlock>(part.of_all());
#pragma unroll
  for (int distance = kLanesPerRow; distance < kWarpSize; distance *= 2) {
    amax = max_skip_nan(amax, __shfl_xor_sync(kAllLanes, amax, distance));
  }
  return amax;
}

template <class T>
__device__ __forceinline__ void store_products(const Products& products, const Problem<T>& problem,
                                               uint8_t* data, int64_t row, int64_t col) {
  const Extent& extent = problem.extent;
  if (extent.contains(row, col)) {
    store_bytes(encode_codes(products, problem.is_e5m2), data + row * extent.cols, col, extent.cols,
                extent.is_aligned);
  }
}

// `tile_codes` takes the codes of the tile's rows.
template <class T>
__device__ __forceinline__ void write_rowwise(const Problem<T>& problem, const Place& place,
                                              const Part<T>& values, const TwoCodes& codes,
                                              uint8_t (&tile_codes)[kBlock][kTileBlocks]) {
  const int own = 2 * (place.lane_col % kLanesPerBlock);
  const int block = place.col_in_tile() / kBlock;
  tile_codes[place.row_in_tile(own)][block] = codes.first;
  tile_codes[place.row_in_tile(own + 1)][block] = codes.second;
  const uint32_t packed = codes.packed();
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const float scale =
        TwoCodes::scale_of(__shfl_sync(kAllLanes, packed, i / 2, kLanesPerBlock), i);
    Products products;
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      products.v[j] = values[i].get(j) * scale;
    }
    store_products(products, problem, problem.rowwise.data, place.row(i), place.col());
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kBlock * kTileBlocks / kThreads; ++i) {
    const int number = i * kThreads + static_cast<int>(threadIdx.x);
    const int64_t row = place.tile_row * kBlock + number / kTileBlocks;
    const int64_t block_col = place.tile_col * kTileBlocks + number % kTileBlocks;
    if (problem.extent.contains(row, block_col * kBlock)) {
      problem.rowwise.put_code(row, block_col,
                               tile_codes[number / kTileBlocks][number % kTileBlocks]);
    }
  }
}

template <class T>
__device__ __forceinline__ void write_columnwise(const Problem<T>& problem, const Place& place,
                                                 const Part<T>& values, const TwoCodes& codes) {
  const int64_t own = place.col() + 2 * place.lane_row;
  if (own < problem.extent.cols) {
    problem.columnwise.put_code(place.tile_row, own, codes.first);
  }
  if (own + 1 < problem.extent.cols) {
    problem.columnwise.put_code(place.tile_row, own + 1, codes.second);
  }
  const uint32_t packed = codes.packed();
  float scales[kSourceVector];
#pragma unroll
  for (int j = 0; j < kSourceVector; ++j) {
    const int lane = j / 2 * kLanesPerRow + place.lane_col;
    scales[j] = TwoCodes::scale_of(__shfl_sync(kAllLanes, packed, lane), j);
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    Products products;
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      products.v[j] = values[i].get(j) * scales[j];
    }
    store_products(products, problem, problem.columnwise.data, place.row(i), place.col());
  }
}

template <class Source, bool kHasColumnwise>
__global__ void __launch_bounds__(kThreads, 4)
    mxfp8_quantize(const Source source, const Problem<typename Source::Element> problem) {
  using T = typename Source::Element;
  __shared__ uint8_t tile_codes[kBlock][kTileBlocks];
  if (problem.noop != nullptr && *problem.noop != 0.0F) {
    return;
  }
  const Place place(problem.tile_columns);
  Part<T> values;
  load_part(source, place, problem.extent, problem.output, values);
  const PartAmax part(values);
  TwoCodes square{};
  if (problem.has_square_tiles) {
    square.first = square.second = problem.code_of(amax_of_square(part));
  }
  if constexpr (kHasColumnwise) {
    if (!HasLongCode<Source> || problem.columnwise.data != nullptr) {
      const TwoCodes codes =
          problem.has_square_tiles ? square : find_codes<kLanesPerRow>(problem, part.of_col);
      write_columnwise(problem, place, values, codes);
    }
  }
  if (problem.rowwise.data != nullptr) {
    const TwoCodes codes = problem.has_square_tiles ? square : find_codes<1>(problem, part.of_row);
    write_rowwise(problem, place, values, codes, tile_codes);
  }
}

inline Copy copy_of(const BlockScaledMatrix& matrix) {
  return {.data = data_of<uint8_t>(matrix.data),
          .codes = static_cast<uint8_t*>(matrix.scales.data),
          .row_stride = matrix.scales.row_stride,
          .col_stride = matrix.scales.col_stride};
}

}  // namespace mxfp8

// Runs it for what is wanted of a [rows, cols] source; `output` is null where the rounded values
// are not wanted. Nothing is written where *noop is neither absent nor 0.
template <class Source>
void quantize_mxfp8(const Source& source, typename Source::Element* output,
                    const BlockQuantizedOutput& quantized, int64_t rows, int64_t cols,
                    const float* noop, cudaStream_t stream) {
  using namespace mxfp8;
  using T = typename Source::Element;
  if (rows == 0 || cols == 0) {
    return;
  }
  const Problem<T> problem{.output = output,
                           .rowwise = copy_of(quantized.rowwise),
                           .columnwise = copy_of(quantized.columnwise),
                           .noop = noop,
                           .extent = extent_of(source, rows, cols, output,
                                               {data_of<void>(quantized.rowwise.data),
                                                data_of<void>(quantized.columnwise.data)}),
                           .tile_columns = divide_up<int64_t>(cols, kTileCols),
                           .is_e5m2 = any_copy(quantized).data.dtype == DType::kFloat8E5M2,
                           .has_square_tiles = quantized.has_square_tiles};
  const Launch config{
      .name = "mxfp8_quantize",
      .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(rows, kBlock) * problem.tile_columns)),
      .block = dim3(kThreads),
      .stream = stream};
  for_columnwise<Source>(quantized, [&](auto has_columnwise) {
    launch(&mxfp8_quantize<Source, has_columnwise()>, config, source, problem);
  });
}

}  // namespace transformer_engine::cuda
