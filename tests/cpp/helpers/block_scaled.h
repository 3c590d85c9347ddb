// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Owning block-scaled copies in the layouts of the Python layer, and what a copy of given values
// must hold, computed in FP64 from the definitions (helpers/formats.h), independent of numerics/.
#pragma once

#include <transformer_engine/block_scaling.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "helpers/formats.h"
#include "helpers/matrix.h"

namespace transformer_engine::testing {

inline int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

enum class BlockKind { kFp8Rows, kFp8Tiles, kMxRows, kMxColumns };

// One copy as stored [rows, cols]; unwritten bytes of data and scales are kUntouched.
class BlockCopy {
 public:
  static constexpr uint8_t kUntouched = 0x5A;

  BlockCopy(BlockKind kind, DType format, int64_t rows, int64_t cols, bool powers_of_two = false)
      : data_(format, rows, cols), scales_(make_scales(kind, rows, cols)) {
    std::memset(data_.data<void>(), kUntouched, data_.size_bytes());
    std::memset(scales_.data<void>(), kUntouched, scales_.size_bytes());
    const int64_t stride = scales_.cols();
    switch (kind) {
      case BlockKind::kFp8Rows:
        layout_ = {.block_cols = 128, .row_stride = 1, .col_stride = stride};
        break;
      case BlockKind::kFp8Tiles:
        layout_ = {.block_rows = 128, .block_cols = 128, .row_stride = stride, .col_stride = 1};
        break;
      case BlockKind::kMxRows:
        layout_ = {.block_cols = 32, .row_stride = stride, .col_stride = 1};
        break;
      case BlockKind::kMxColumns:
        layout_ = {.block_rows = 32, .row_stride = stride, .col_stride = 1};
        break;
    }
    layout_.dtype = scales_.view().dtype;
    layout_.are_powers_of_two = powers_of_two;
  }

  BlockScaledMatrix view() {
    BlockScaledMatrix matrix{.data = data_.view(), .scales = layout_};
    matrix.scales.data = scales_.data<void>();
    return matrix;
  }
  Matrix& data() { return data_; }
  Matrix& scales() { return scales_; }

 private:
  static Matrix make_scales(BlockKind kind, int64_t rows, int64_t cols) {
    const auto blocks = [](int64_t count, int64_t block) { return (count + block - 1) / block; };
    switch (kind) {
      case BlockKind::kFp8Rows:
        return {DType::kFloat32, blocks(cols, 128), round_up(rows, 4)};
      case BlockKind::kFp8Tiles:
        return {DType::kFloat32, blocks(rows, 128), round_up(blocks(cols, 128), 4)};
      case BlockKind::kMxRows:
        return {DType::kFloat8E8M0, round_up(rows, 128), round_up(blocks(cols, 32), 4)};
      case BlockKind::kMxColumns:
        break;
    }
    return {DType::kFloat8E8M0, round_up(blocks(rows, 32), 4), round_up(cols, 128)};
  }

  Matrix data_;
  Matrix scales_;
  BlockScales layout_;
};

inline ::testing::AssertionResult same_copy(BlockCopy& got, BlockCopy& expected) {
  if (const auto data = same_bytes(got.data(), expected.data()); !data) {
    return ::testing::AssertionFailure() << "data: " << data.message();
  }
  if (const auto scales = same_bytes(got.scales(), expected.scales()); !scales) {
    return ::testing::AssertionFailure() << "scales: " << scales.message();
  }
  return ::testing::AssertionSuccess();
}

inline const Format& fp8_description(DType format) {
  return format == DType::kFloat8E4M3 ? kE4M3 : kE5M2;
}
inline double fp8_max(DType format) { return format == DType::kFloat8E4M3 ? 448.0 : 57344.0; }

// max |x| over the numbers of a part of a matrix, 0 where there is none.
inline double part_amax(Matrix& input, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  double amax = 0.0;
  for (int64_t r = row; r < std::min(row + rows, input.rows()); ++r) {
    for (int64_t c = col; c < std::min(col + cols, input.cols()); ++c) {
      amax = std::fmax(amax, std::abs(input.get(r * input.cols() + c)));
    }
  }
  return amax;
}

// The scale of a block of the FP8 block format. A quotient of FP32 numbers rounded through FP64 is
// the FP32 quotient (test_scale.cpp).
struct Fp8BlockRule {
  DType format;
  double epsilon = 0.0;
  bool power_of_two = false;
};
inline float expected_fp8_scale(double amax, DType input, const Fp8BlockRule& rule) {
  const double raised = std::max(amax, rule.epsilon);
  if (raised == 0.0 || std::isinf(raised)) {
    return 1.0F;
  }
  const double quotient = fp8_max(rule.format) / raised;
  const double largest = input == DType::kFloat32    ? 0x1.fffffep127
                         : input == DType::kBFloat16 ? 0x1.fep127
                                                     : 65504.0;
  // Half a step beyond the largest FP32 number an FP32 division gives infinity.
  const double scale = quotient >= 0x1.ffffffp127 ? largest : static_cast<float>(quotient);
  return static_cast<float>(rule.power_of_two ? std::ldexp(1.0, std::ilogb(scale)) : scale);
}

// Code of the smallest power of two that is at least amax * FP32(1 / fp8_max).
inline int expected_e8m0(double amax, DType format) {
  const float reciprocal = static_cast<float>(1.0 / fp8_max(format));
  const auto value = static_cast<float>(amax * reciprocal);
  int code = 0;
  while (code < 254 && std::ldexp(1.0, code - 127) < static_cast<double>(value)) {
    ++code;
  }
  return code;
}

// FP8 code of x * scale, where the product is an FP32 number.
inline uint8_t expected_code(const NearestCode& nearest, double x, double scale) {
  const double product = static_cast<float>(x * scale);
  return std::isnan(product) ? 0x7F : static_cast<uint8_t>(nearest.saturating(product));
}

// Fills data of `copy` [rows, cols] with codes of element(row, col) * scale(row, col).
inline void fill_expected_codes(BlockCopy& copy,
                                const std::function<double(int64_t, int64_t)>& element,
                                const std::function<double(int64_t, int64_t)>& scale) {
  const NearestCode nearest(fp8_description(copy.data().view().dtype));
  for (int64_t row = 0; row < copy.data().rows(); ++row) {
    for (int64_t col = 0; col < copy.data().cols(); ++col) {
      copy.data().data<uint8_t>()[row * copy.data().cols() + col] =
          expected_code(nearest, element(row, col), scale(row, col));
    }
  }
}

// The FP8-block copy of `input`; `is_transposed`: the columnwise one.
inline void fill_expected_fp8(BlockCopy& copy, Matrix& input, bool is_transposed,
                              const Fp8BlockRule& rule) {
  BlockScaledMatrix view = copy.view();
  const BlockScales& scales = view.scales;
  auto* scale_inv = static_cast<float*>(scales.data);
  const int64_t rows = view.data.rows;
  const int64_t cols = view.data.cols;
  Matrix scale(DType::kFloat32, 1, copy.scales().numel());
  for (int64_t row = 0; row < rows; row += scales.block_rows) {
    for (int64_t col = 0; col < cols; col += scales.block_cols) {
      const double amax = is_transposed
                              ? part_amax(input, col, row, scales.block_cols, scales.block_rows)
                              : part_amax(input, row, col, scales.block_rows, scales.block_cols);
      const float value = expected_fp8_scale(amax, input.view().dtype, rule);
      const int64_t index =
          row / scales.block_rows * scales.row_stride + col / scales.block_cols * scales.col_stride;
      scale.data<float>()[index] = value;
      scale_inv[index] = static_cast<float>(1.0 / static_cast<double>(value));
    }
  }
  fill_expected_codes(
      copy,
      [&](int64_t row, int64_t col) {
        return input.get(is_transposed ? col * rows + row : row * cols + col);
      },
      [&](int64_t row, int64_t col) -> double {
        return scale.data<float>()[row / scales.block_rows * scales.row_stride +
                                   col / scales.block_cols * scales.col_stride];
      });
}

// An MXFP8 copy of `input`, rowwise or columnwise by its blocks.
inline void fill_expected_mxfp8(BlockCopy& copy, Matrix& input, bool has_square_tiles) {
  BlockScaledMatrix view = copy.view();
  const BlockScales& scales = view.scales;
  const int64_t tile_rows = has_square_tiles ? 32 : scales.block_rows;
  const int64_t tile_cols = has_square_tiles ? 32 : scales.block_cols;
  auto* codes = static_cast<uint8_t*>(scales.data);
  const auto index = [&](int64_t row, int64_t col) {
    return row / scales.block_rows * scales.row_stride +
           col / scales.block_cols * scales.col_stride;
  };
  for (int64_t row = 0; row < view.data.rows; row += scales.block_rows) {
    for (int64_t col = 0; col < view.data.cols; col += scales.block_cols) {
      const double amax = part_amax(input, row / tile_rows * tile_rows, col / tile_cols * tile_cols,
                                    tile_rows, tile_cols);
      codes[index(row, col)] = static_cast<uint8_t>(expected_e8m0(amax, view.data.dtype));
    }
  }
  fill_expected_codes(
      copy, [&](int64_t row, int64_t col) { return input.get(row * view.data.cols + col); },
      [&](int64_t row, int64_t col) { return std::ldexp(1.0, 127 - codes[index(row, col)]); });
}

}  // namespace transformer_engine::testing
