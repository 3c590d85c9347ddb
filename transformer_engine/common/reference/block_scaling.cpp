// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/block_scaling.h"

#include <algorithm>

#include "numerics/e8m0.h"
#include "numerics/half.h"
#include "numerics/minifloat.h"
#include "numerics/scale.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

constexpr int64_t kMxTile = 32;

// A part of a matrix.
struct Block {
  int64_t row, col, rows, cols;

  Block transposed() const { return {col, row, cols, rows}; }
};

// The part of [rows, cols] that starts at (row, col) and has at most this size.
Block clipped(const TensorView& matrix, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  return {row, col, std::min(rows, matrix.rows - row), std::min(cols, matrix.cols - col)};
}

// Calls body(block) for each block of a copy, as stored.
template <typename Body>
void for_each_block(const BlockScaledMatrix& copy, const Body& body) {
  const BlockScales& scales = copy.scales;
  for (int64_t row = 0; row < copy.data.rows; row += scales.block_rows) {
    for (int64_t col = 0; col < copy.data.cols; col += scales.block_cols) {
      body(clipped(copy.data, row, col, scales.block_rows, scales.block_cols));
    }
  }
}

float amax_of(const TensorView& input, const Block& block) {
  float amax = 0.0F;
  for (int64_t row = block.row; row < block.row + block.rows; ++row) {
    for (int64_t col = block.col; col < block.col + block.cols; ++col) {
      const float value = load_float(input, row * input.cols + col);
      amax = numerics::max_skip_nan(amax, numerics::magnitude(value));
    }
  }
  return amax;
}

float fp8_max_of(DType format) {
  return format == DType::kFloat8E4M3 ? numerics::E4M3::kMax : numerics::E5M2::kMax;
}

// The largest finite number of a high-precision type.
float largest_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return numerics::float_from_bf16(numerics::kBf16Max);
    case DType::kFloat16:
      return numerics::float_from_fp16(numerics::kFp16Max);
    default:
      return numerics::kFloatMax;
  }
}

// Codes of one block of a copy.
void encode_block(const TensorView& input, const TensorView& data, const Block& block,
                  bool is_transposed, float scale) {
  for (int64_t row = block.row; row < block.row + block.rows; ++row) {
    for (int64_t col = block.col; col < block.col + block.cols; ++col) {
      const int64_t source = is_transposed ? col * input.cols + row : row * input.cols + col;
      static_cast<uint8_t*>(data.data)[row * data.cols + col] =
          encode_fp8(data.dtype, load_float(input, source) * scale);
    }
  }
}

void quantize_fp8_copy(const QuantizeFp8BlocksArgs& args, const BlockScaledMatrix& copy,
                       bool is_transposed) {
  if (!copy.is_wanted()) {
    return;
  }
  const numerics::CurrentScaling rule{.fp8_max = fp8_max_of(copy.data.dtype),
                                      .epsilon = args.epsilon,
                                      .power_of_two = copy.scales.are_powers_of_two,
                                      .largest = largest_of(args.input.dtype)};
  for_each_block(copy, [&](const Block& block) {
    const float amax = amax_of(args.input, is_transposed ? block.transposed() : block);
    const float scale = numerics::current_scaling_scale(amax, rule);
    encode_block(args.input, copy.data, block, is_transposed, scale);
    static_cast<float*>(copy.scales.data)[copy.scales.index(block.row, block.col)] =
        numerics::inverse_scale(scale);
  });
}

void quantize_mxfp8_copy(const QuantizeMxfp8Args& args, const BlockScaledMatrix& copy) {
  if (!copy.is_wanted()) {
    return;
  }
  for_each_block(copy, [&](const Block& block) {
    const Block tile = clipped(args.input, block.row / kMxTile * kMxTile,
                               block.col / kMxTile * kMxTile, kMxTile, kMxTile);
    const float amax = amax_of(args.input, args.has_square_tiles ? tile : block);
    const uint8_t code = numerics::e8m0_from_amax(amax, fp8_max_of(copy.data.dtype));
    encode_block(args.input, copy.data, block, false, numerics::reciprocal_e8m0(code));
    static_cast<uint8_t*>(copy.scales.data)[copy.scales.index(block.row, block.col)] = code;
  });
}

float element(const TensorView& data, int64_t row, int64_t col) {
  const auto* bytes = static_cast<const uint8_t*>(data.data);
  if (data.dtype == DType::kFloat4E2M1) {
    const int64_t row_bytes = row_size_bytes(data.dtype, data.cols);
    const uint8_t packed = bytes[row * row_bytes + col / 2];
    return numerics::decode<numerics::E2M1>(numerics::unpack_e2m1(packed, col % 2 != 0));
  }
  return decode_fp8(data.dtype, bytes[row * data.cols + col]);
}

float block_scale_inv(const BlockScales& scales, int64_t row, int64_t col) {
  const int64_t index = scales.index(row, col);
  switch (scales.dtype) {
    case DType::kFloat8E8M0:
      return numerics::decode_e8m0(static_cast<const uint8_t*>(scales.data)[index]);
    case DType::kFloat8E4M3:
      return numerics::decode<numerics::E4M3>(static_cast<const uint8_t*>(scales.data)[index]);
    default:
      return static_cast<const float*>(scales.data)[index];
  }
}

}  // namespace

void quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context&) {
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  quantize_fp8_copy(args, args.rowwise, false);
  quantize_fp8_copy(args, args.columnwise, true);
}

void quantize_mxfp8(const QuantizeMxfp8Args& args, const Context&) {
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  quantize_mxfp8_copy(args, args.rowwise);
  quantize_mxfp8_copy(args, args.columnwise);
}

void quantize_blocks(const TensorView& input, const BlockQuantizedOutput& output,
                     const Context& context) {
  const BlockScaledMatrix& any = output.rowwise.is_wanted() ? output.rowwise : output.columnwise;
  if (any.scales.dtype == DType::kFloat8E8M0) {
    reference::quantize_mxfp8({.input = input,
                               .rowwise = output.rowwise,
                               .columnwise = output.columnwise,
                               .has_square_tiles = output.has_square_tiles},
                              context);
  } else {
    reference::quantize_fp8_blocks({.input = input,
                                    .rowwise = output.rowwise,
                                    .columnwise = output.columnwise,
                                    .epsilon = output.epsilon},
                                   context);
  }
}

float load_dequantized(const BlockScaledMatrix& matrix, int64_t row, int64_t col) {
  const BlockScales& scales = matrix.scales;
  const float value = element(matrix.data, row, col) * block_scale_inv(scales, row, col);
  if (matrix.data.dtype != DType::kFloat4E2M1) {
    return value;
  }
  const float amax = scales.amax[scales.is_row_scaled ? row : 0];
  return value * numerics::nvfp4_tensor_scale_inv(amax, scales.e4m3_max);
}

void dequantize_blocks(const DequantizeBlocksArgs& args, const Context&) {
  for (int64_t row = 0; row < args.output.rows; ++row) {
    for (int64_t col = 0; col < args.output.cols; ++col) {
      store_float(args.output, row * args.output.cols + col,
                  load_dequantized(args.input, row, col));
    }
  }
}

}  // namespace transformer_engine::reference
