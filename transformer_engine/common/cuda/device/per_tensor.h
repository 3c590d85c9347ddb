// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Per-tensor FP8 of the values of a source (device/source.h), all wanted outputs in one pass:
//   output[r, c]          the value, rounded to the source's element type
//   data[r, c]            encode(value * scale)
//   data_transpose[c, r]  the same codes
//   amax                  max(amax, max |value|), NaN skipped
//   scale_inv             1 / scale
// One block of 256 threads takes a tile of 64 x 64: eight threads a row of the tile, 8 elements
// each; with a transpose the codes go through shared memory and four threads write a column of the
// tile, 16 bytes each. Reads the source once; writes one byte per element for each FP8 copy.
#pragma once

#include "cuda/device/reduce.h"
#include "cuda/device/source.h"
#include "cuda/dispatch.h"
#include "numerics/scale.h"

namespace transformer_engine::cuda {

template <class T>
struct PerTensorOutputs {
  T* output = nullptr;                // [rows, cols] or null
  uint8_t* data = nullptr;            // [rows, cols] or null
  uint8_t* data_transpose = nullptr;  // [cols, rows] or null
  float* amax = nullptr;              // [1] or null
  float* scale_inv = nullptr;         // [1] or null
  const float* scale = nullptr;       // [1] or null: 1
  const float* noop = nullptr;        // [1] or null
  bool is_e5m2 = false;               // the format of data and data_transpose
};

template <class T>
PerTensorOutputs<T> per_tensor_outputs(const QuantizedOutput& quantized, T* output = nullptr,
                                       const float* noop = nullptr) {
  const TensorView& copy =
      quantized.data.data != nullptr ? quantized.data : quantized.data_transpose;
  return {output,
          data_of<uint8_t>(quantized.data),
          data_of<uint8_t>(quantized.data_transpose),
          quantized.amax,
          quantized.scale_inv,
          quantized.scale,
          noop,
          copy.dtype == DType::kFloat8E5M2};
}

namespace per_tensor {

constexpr int kTile = 64;
constexpr int kThreads = 256;
constexpr int kThreadsPerRow = kTile / kSourceVector;
constexpr int kRowsAtOnce = kThreads / kThreadsPerRow;
constexpr int kColumnVector = 16;  // bytes of a column of the tile that a thread writes
// A row of codes is 17 words, so that the threads of a warp that read a column of the tile spread
// over the banks.
constexpr int kRowBytes = kTile + 4;

template <class Format, int kN>
__device__ __forceinline__ Vec<uint8_t, kN> encode_vector(const float (&values)[kN], float scale) {
  Vec<uint8_t, kN> codes;
#pragma unroll
  for (int i = 0; i < kN; i += 2) {
    const uint16_t pair = encode_fp8_pair<Format>(values[i] * scale, values[i + 1] * scale);
    codes.v[i] = static_cast<uint8_t>(pair);
    codes.v[i + 1] = static_cast<uint8_t>(pair >> 8);
  }
  return codes;
}

// The format at run time: one branch, the same for the whole grid.
template <int kN>
__device__ __forceinline__ Vec<uint8_t, kN> encode_vector(const float (&values)[kN], float scale,
                                                          bool is_e5m2) {
  if constexpr (kN == 1) {
    const float value = values[0] * scale;
    return {is_e5m2 ? encode_fp8<numerics::E5M2>(value) : encode_fp8<numerics::E4M3>(value)};
  } else {
    return is_e5m2 ? encode_vector<numerics::E5M2>(values, scale)
                   : encode_vector<numerics::E4M3>(values, scale);
  }
}

template <int kN>
__device__ __forceinline__ float amax_of(const float (&values)[kN], float amax) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    amax = max_skip_nan(amax, fabsf(values[i]));
  }
  return amax;
}

// The elements of `values` that lie inside a row of `cols`.
template <bool kAligned, class T, int kN>
__device__ __forceinline__ void store_part(T* row, int64_t col, int64_t cols,
                                           const Vec<T, kN>& values) {
  if (kAligned && col + kN <= cols) {
    values.store(row + col);
    return;
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (col + i < cols) {
      row[col + i] = values.v[i];
    }
  }
}
template <bool kAligned, class T, int kN>
__device__ __forceinline__ void store_floats_part(T* row, int64_t col, int64_t cols,
                                                  const float (&values)[kN]) {
  if (kAligned && col + kN <= cols) {
    store_floats<kN, true>(row + col, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (col + i < cols) {
      row[col + i] = from_float<T>(values[i]);
    }
  }
}

template <bool kAligned>
__device__ __forceinline__ void write_transposed(const uint8_t (&tile)[kTile][kRowBytes],
                                                 uint8_t* data_transpose, int64_t row0,
                                                 int64_t col0, int64_t rows, int64_t cols) {
  constexpr int kThreadsPerColumn = kTile / kColumnVector;
  const int column = static_cast<int>(threadIdx.x) / kThreadsPerColumn;
  const int first = static_cast<int>(threadIdx.x) % kThreadsPerColumn * kColumnVector;
  if (col0 + column >= cols) {
    return;
  }
  Vec<uint8_t, kColumnVector> codes;
#pragma unroll
  for (int i = 0; i < kColumnVector; ++i) {
    codes.v[i] = tile[first + i][column];
  }
  store_part<kAligned>(data_transpose + (col0 + column) * rows, row0 + first, rows, codes);
}

// Blocks of the kernel that are to fit on a multiprocessor: with a plain matrix as many as reading
// takes, else as few as leave a computed source its registers (64; device/source.h).
template <class Source>
inline constexpr int kBlocksPerMultiprocessor = 4;
template <class T>
inline constexpr int kBlocksPerMultiprocessor<MatrixSource<T>> = 6;

// kAligned: rows of the source and of every output allow vectors. `tile_columns` tiles lie side by
// side; block b has tile (b / tile_columns, b % tile_columns).
template <class Source, bool kAligned, bool kHasTranspose>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<Source>)
    per_tensor_quantize(const Source source,
                        const PerTensorOutputs<typename Source::Element> outputs,
                        const int64_t rows, const int64_t cols, const int tile_columns) {
  __shared__ uint8_t tile[kHasTranspose ? kTile : 1][kRowBytes];
  __shared__ float warp_amax[kThreads / kWarpSize];
  if (outputs.noop != nullptr && *outputs.noop != 0.0F) {
    return;
  }
  const float scale = outputs.scale != nullptr ? *outputs.scale : 1.0F;
  const int block = static_cast<int>(blockIdx.x);
  const int64_t row0 = static_cast<int64_t>(block / tile_columns) * kTile;
  const int64_t col0 = static_cast<int64_t>(block % tile_columns) * kTile;
  const int tile_col = static_cast<int>(threadIdx.x) % kThreadsPerRow * kSourceVector;
  const int64_t col = col0 + tile_col;
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < kTile / kRowsAtOnce; ++i) {
    const int tile_row = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kThreadsPerRow;
    const int64_t row = row0 + tile_row;
    if (row >= rows || col >= cols) {
      continue;
    }
    float values[kSourceVector];
    load_rounded<kSourceVector, kAligned>(source, row, col, cols, values);
    amax = amax_of(values, amax);
    const auto codes = encode_vector(values, scale, outputs.is_e5m2);
    if (outputs.data != nullptr) {
      store_part<kAligned>(outputs.data + row * cols, col, cols, codes);
    }
    if (outputs.output != nullptr) {
      store_floats_part<kAligned>(outputs.output + row * cols, col, cols, values);
    }
    if constexpr (kHasTranspose) {
      auto* words = reinterpret_cast<uint32_t*>(&tile[tile_row][tile_col]);
      words[0] = reinterpret_cast<const uint32_t*>(codes.v)[0];
      words[1] = reinterpret_cast<const uint32_t*>(codes.v)[1];
    }
  }
  if constexpr (kHasTranspose) {
    __syncthreads();
    write_transposed<kAligned>(tile, outputs.data_transpose, row0, col0, rows, cols);
  }
  if (outputs.amax != nullptr) {
    amax = block_reduce<Max, kThreads>(amax, warp_amax);
    if (threadIdx.x == 0) {
      atomic_max_skip_nan(outputs.amax, amax);
    }
  }
  if (outputs.scale_inv != nullptr && block == 0 && threadIdx.x == 0) {
    *outputs.scale_inv = numerics::inverse_scale(scale);
  }
}

template <class Source, class T>
bool all_aligned(const Source& source, const PerTensorOutputs<T>& outputs, int64_t rows,
                 int64_t cols) {
  return source.can_be_aligned() && has_aligned_rows(outputs.output, cols, sizeof(T)) &&
         has_aligned_rows(outputs.data, cols, 1, kSourceVector) &&
         has_aligned_rows(outputs.data_transpose, rows, 1);
}

template <bool kHasTranspose, class Source>
void run(const Source& source, const PerTensorOutputs<typename Source::Element>& outputs,
         int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t tile_columns = divide_up<int64_t>(cols, kTile);
  const int64_t tiles = divide_up<int64_t>(rows, kTile) * tile_columns;
  // An empty matrix has a block all the same, for scale_inv.
  const Launch config{.name = "per_tensor_quantize",
                      .grid = dim3(static_cast<unsigned>(tiles > 0 ? tiles : 1)),
                      .block = dim3(kThreads),
                      .stream = stream};
  for_bool(all_aligned(source, outputs, rows, cols), [&](auto aligned) {
    launch(&per_tensor_quantize<Source, aligned(), kHasTranspose>, config, source, outputs, rows,
           cols, static_cast<int>(tile_columns > 0 ? tile_columns : 1));
  });
}

}  // namespace per_tensor

// Runs it for what is wanted of a [rows, cols] source.
template <class Source>
void quantize_per_tensor(const Source& source,
                         const PerTensorOutputs<typename Source::Element>& outputs, int64_t rows,
                         int64_t cols, cudaStream_t stream) {
  for_bool(outputs.data_transpose != nullptr, [&](auto has_transpose) {
    per_tensor::run<has_transpose()>(source, outputs, rows, cols, stream);
  });
}
// The same, of kernels with a transpose alone: for ops that have others where none is wanted.
template <class Source>
void quantize_per_tensor_transposed(const Source& source,
                                    const PerTensorOutputs<typename Source::Element>& outputs,
                                    int64_t rows, int64_t cols, cudaStream_t stream) {
  per_tensor::run<true>(source, outputs, rows, cols, stream);
}

}  // namespace transformer_engine::cuda
