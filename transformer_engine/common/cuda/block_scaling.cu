// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The FP8-block and MXFP8 ops of transformer_engine/block_scaling.h (device/fp8_blocks.h,
// device/mxfp8.h) and dequantize_blocks: codes times scales are a source, whose rounded values are
// stored. That reads one byte, or half a one, and writes the output's bytes per element.
#include <transformer_engine/block_scaling.h>

#include <bit>
#include <type_traits>

#include "cuda/candidate.h"
#include "cuda/device/quantize_source.h"

namespace transformer_engine::cuda {

namespace {

void run_quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context) {
  const TensorView& input = args.input;
  for_high_precision(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    quantize_fp8_blocks(
        MatrixSource<T>{data_of<const T>(input), input.cols}, static_cast<T*>(nullptr),
        {.rowwise = args.rowwise, .columnwise = args.columnwise, .epsilon = args.epsilon},
        input.rows, input.cols, args.noop, stream_of(context));
  });
}

void run_quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context) {
  const TensorView& input = args.input;
  for_high_precision(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    quantize_mxfp8(MatrixSource<T>{data_of<const T>(input), input.cols}, static_cast<T*>(nullptr),
                   {.rowwise = args.rowwise,
                    .columnwise = args.columnwise,
                    .has_square_tiles = args.has_square_tiles},
                   input.rows, input.cols, args.noop, stream_of(context));
  });
}

// index / size for the number of a block, by a shift where the size is a power of two.
struct BlockSize {
  int64_t size;
  int shift;  // -1: not a power of two

  explicit BlockSize(int64_t elements)
      : size(elements),
        shift(std::has_single_bit(static_cast<uint64_t>(elements))
                  ? std::countr_zero(static_cast<uint64_t>(elements))
                  : -1) {}
  __device__ __forceinline__ int64_t block_of(int64_t index) const {
    return shift >= 0 ? index >> shift : index / size;
  }
};

struct ScaleReader {
  const void* data;
  DType dtype;
  BlockSize block_rows;
  BlockSize block_cols;
  int64_t row_stride;
  int64_t col_stride;
  const float* amax;  // of NVFP4, else null
  bool is_row_scaled;
  float e4m3_max;

  explicit ScaleReader(const BlockScales& scales)
      : data(scales.data),
        dtype(scales.dtype),
        block_rows(scales.block_rows),
        block_cols(scales.block_cols),
        row_stride(scales.row_stride),
        col_stride(scales.col_stride),
        amax(scales.amax),
        is_row_scaled(scales.is_row_scaled),
        e4m3_max(scales.e4m3_max) {}

  __device__ __forceinline__ float scale_inv(int64_t row, int64_t col) const {
    return of_block(block_rows.block_of(row), block_cols.block_of(col));
  }
  __device__ __forceinline__ float of_block(int64_t block_row, int64_t block_col) const {
    const int64_t index = block_row * row_stride + block_col * col_stride;
    switch (dtype) {
      case DType::kFloat8E8M0:
        return numerics::decode_e8m0(static_cast<const uint8_t*>(data)[index]);
      case DType::kFloat8E4M3:
        return decode_fp8<numerics::E4M3>(static_cast<const uint8_t*>(data)[index]);
      default:
        return static_cast<const float*>(data)[index];
    }
  }
  // Second level of NVFP4.
  __device__ __forceinline__ float tensor_scale_inv(int64_t row) const {
    return numerics::nvfp4_tensor_scale_inv(amax[is_row_scaled ? row : 0], e4m3_max);
  }
  // Whether `count` columns from a multiple of it on have one scale.
  __device__ __forceinline__ bool shares_scale(int count) const {
    return block_cols.size % count == 0;
  }
};

// In place of an FP8 format: E2M1, two codes to a byte, decoded by arithmetic (device/convert.h).
struct Fp4Pairs {};

// Codes of FP8 or E2M1 in rows of row_bytes.
template <class Format>
struct CodeRows {
  static constexpr bool kIsE2M1 = std::is_same_v<Format, Fp4Pairs>;
  const uint8_t* data;
  int64_t row_bytes;

  template <int kN, bool kAligned>
  __device__ __forceinline__ void load(int64_t row, int64_t col, float (&values)[kN]) const {
    const uint8_t* const codes = data + row * row_bytes + (kIsE2M1 ? col / 2 : col);
    if constexpr (!kAligned) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const int64_t half = kIsE2M1 ? (col + i) / 2 - col / 2 : i;
        values[i] = decode(codes[half], (col + i) % 2 != 0);
      }
    } else {
      constexpr int kBytes = kIsE2M1 ? kN / 2 : kN;
      const auto vector = Vec<uint8_t, kBytes>::load(codes);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] = decode(vector.v[kIsE2M1 ? i / 2 : i], i % 2 != 0);
      }
    }
  }
  __device__ __forceinline__ static float decode(uint8_t byte, bool is_odd) {
    if constexpr (kIsE2M1) {
      return decode_e2m1(numerics::unpack_e2m1(byte, is_odd));
    } else {
      return decode_fp8<Format>(byte);
    }
  }
  bool can_be_aligned() const {
    constexpr int64_t kBytes = kIsE2M1 ? kSourceVector / 2 : kSourceVector;
    return has_aligned_rows(data, row_bytes, 1, kBytes);
  }
};

// round(q * scale), for NVFP4 round((q * scale) * tensor scale).
template <class T, class Format>
struct BlockSource {
  using Element = T;
  CodeRows<Format> codes;
  ScaleReader scales;

  template <int kN, bool kAligned>
  __device__ __forceinline__ void load(int64_t row, int64_t col, float (&values)[kN]) const {
    codes.template load<kN, kAligned>(row, col, values);
    if (kN == 1 || (kAligned && scales.shares_scale(kN))) {
      const float scale_inv = scales.scale_inv(row, col);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] *= scale_inv;
      }
    } else {
      multiply_each(row, col, values);
    }
    if constexpr (CodeRows<Format>::kIsE2M1) {
      const float tensor_scale_inv = scales.tensor_scale_inv(row);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] *= tensor_scale_inv;
      }
    }
  }
  bool can_be_aligned() const { return codes.can_be_aligned(); }

 private:
  // One scale after another; a division for the number of the block stands in the code once.
  template <int kN>
  __device__ __forceinline__ void multiply_each(int64_t row, int64_t col,
                                                float (&values)[kN]) const {
    const int64_t block_row = scales.block_rows.block_of(row);
    if (scales.block_cols.shift >= 0) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] *= scales.of_block(block_row, (col + i) >> scales.block_cols.shift);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kN; ++i) {
      const float scale_inv = scales.of_block(block_row, scales.block_cols.block_of(col + i));
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        values[j] = i == j ? values[j] * scale_inv : values[j];
      }
    }
  }
};

template <class T, class Format>
void dequantize(const DequantizeBlocksArgs& args, const Context& context) {
  const TensorView& data = args.input.data;
  const BlockSource<T, Format> source{
      {data_of<const uint8_t>(data), row_size_bytes(data.dtype, data.cols)},
      ScaleReader(args.input.scales)};
  values_alone::run(source, data_of<T>(args.output), data.rows, data.cols, nullptr,
                    stream_of(context));
}

void run_dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context) {
  if (args.output.numel() == 0) {
    return;
  }
  for_high_precision(args.output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    switch (args.input.data.dtype) {
      case DType::kFloat4E2M1:
        return dequantize<T, Fp4Pairs>(args, context);
      case DType::kFloat8E5M2:
        return dequantize<T, numerics::E5M2>(args, context);
      default:
        return dequantize<T, numerics::E4M3>(args, context);
    }
  });
}

}  // namespace

TE_CUDA_ENTRY_POINT(QuantizeFp8BlocksArgs, run_quantize_fp8_blocks)
TE_CUDA_ENTRY_POINT(QuantizeMxfp8Args, run_quantize_mxfp8)
TE_CUDA_ENTRY_POINT(DequantizeBlocksArgs, run_dequantize_blocks)

}  // namespace transformer_engine::cuda
