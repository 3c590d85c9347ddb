// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Cast kernels on every instruction set of this machine, bitwise against reference/cast.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cast_kernels.h"
#include "helpers/formats.h"
#include "helpers/isas.h"
#include "helpers/matrix.h"
#include "reference/cast.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::cpu::CastKernels;
using te::testing::fill_random;
using te::testing::fill_random_bytes;
using te::testing::Matrix;
using te::testing::same_bytes;

constexpr DType kInputs[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr float kScales[] = {1.0F,
                             0.37F,
                             3.0F,
                             1024.0F,
                             1e-30F,
                             0x1p127F,
                             0x1p-149F,
                             HUGE_VALF,
                             -2.5F,
                             0.0F,
                             std::numeric_limits<float>::quiet_NaN()};

class CastKernelsTest : public ::testing::TestWithParam<te::testing::NamedTable<CastKernels>> {};
INSTANTIATE_TEST_SUITE_P(Isas, CastKernelsTest,
                         ::testing::ValuesIn(TE_TABLES_OF(CastKernels, cast_kernels)),
                         [](const auto& info) { return info.param.isa; });

// Every code of a 16-bit type once, or FP32 around every rounding decision.
Matrix exhaustive_input(DType dtype, DType format) {
  if (dtype != DType::kFloat32) {
    Matrix input(dtype, 256, 256);
    for (int i = 0; i < 65536; ++i) {
      input.data<uint16_t>()[i] = static_cast<uint16_t>(i);
    }
    return input;
  }
  std::vector<float> values = te::testing::range_cases();
  const auto& description = format == DType::kFloat8E4M3 ? te::testing::kE4M3 : te::testing::kE5M2;
  for (const auto& more : {te::testing::rounding_cases(description), te::testing::nan_cases()}) {
    values.insert(values.end(), more.begin(), more.end());
  }
  Matrix input(dtype, 1, static_cast<int64_t>(values.size()));
  std::memcpy(input.data<void>(), values.data(), input.size_bytes());
  return input;
}

struct Quantized {
  Matrix data;
  float amax;
};

Quantized reference_quantize(Matrix& input, DType format, float scale) {
  Quantized result{Matrix(format, input.rows(), input.cols()), 0.0F};
  te::QuantizeArgs args{.input = input.view(), .output = {}};
  args.output.data = result.data.view();
  args.output.scale = &scale;
  args.output.amax = &result.amax;
  te::reference::quantize(args, {});
  return result;
}

Quantized kernel_quantize(const CastKernels& kernels, Matrix& input, DType format, float scale,
                          bool stream = false) {
  const int input_index = static_cast<int>(
      std::find(std::begin(kInputs), std::end(kInputs), input.view().dtype) - kInputs);
  Quantized result{Matrix(format, input.rows(), input.cols()), 0.0F};
  const te::cpu::QuantizeTile tile{.input = input.data<void>(),
                                   .input_stride = input.cols(),
                                   .output = result.data.data<uint8_t>(),
                                   .output_stride = input.cols(),
                                   .rows = input.rows(),
                                   .cols = input.cols(),
                                   .scale = scale,
                                   .stream = stream};
  result.amax = kernels.quantize[input_index][format == DType::kFloat8E5M2](tile);
  return result;
}

TEST_P(CastKernelsTest, QuantizesEveryInputAsTheReference) {
  const CastKernels& kernels = *GetParam().table;
  for (const DType dtype : kInputs) {
    for (const DType format : kFormats) {
      Matrix input = exhaustive_input(dtype, format);
      for (const float scale : kScales) {
        Quantized expected = reference_quantize(input, format, scale);
        Quantized got = kernel_quantize(kernels, input, format, scale);
        ASSERT_TRUE(same_bytes(got.data, expected.data))
            << te::dtype_name(dtype) << " to " << te::dtype_name(format) << " scale " << scale;
        EXPECT_EQ(got.amax, expected.amax);
      }
    }
  }
}

// Without NaN the fast path is taken to its end.
TEST_P(CastKernelsTest, QuantizesEveryNumberOfBf16AsTheReference) {
  for (const DType format : kFormats) {
    Matrix input = exhaustive_input(DType::kBFloat16, format);
    for (int i = 0; i < 65536; ++i) {
      const bool is_nan = (i & 0x7FFF) > 0x7F80;
      input.data<uint16_t>()[i] = static_cast<uint16_t>(is_nan ? i & 0x807F : i);
    }
    for (const float scale : kScales) {
      Quantized expected = reference_quantize(input, format, scale);
      Quantized got = kernel_quantize(*GetParam().table, input, format, scale, true);
      ASSERT_TRUE(same_bytes(got.data, expected.data)) << scale;
      EXPECT_EQ(got.amax, expected.amax);
    }
  }
}

TEST_P(CastKernelsTest, QuantizesAnyShapeWithAndWithoutStreaming) {
  constexpr int64_t kShapes[][2] = {{1, 1},  {1, 63},   {1, 64},   {1, 4097}, {3, 31},
                                    {7, 65}, {67, 129}, {16, 256}, {5, 8200}, {1, 20000}};
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : kInputs) {
      Matrix input(dtype, rows, cols);
      fill_random(input, 17);
      Quantized expected = reference_quantize(input, DType::kFloat8E4M3, 1.7F);
      for (const bool stream : {false, true}) {
        Quantized got = kernel_quantize(*GetParam().table, input, DType::kFloat8E4M3, 1.7F, stream);
        ASSERT_TRUE(same_bytes(got.data, expected.data)) << rows << " x " << cols;
        EXPECT_EQ(got.amax, expected.amax);
      }
    }
  }
}

// Each position once, so that a NaN in a full vector, a tail and every block is found.
TEST_P(CastKernelsTest, OneNaNAnywhereIsKeptAndSkippedByAmax) {
  Matrix input(DType::kBFloat16, 3, 333);
  for (int64_t i = 0; i < input.numel(); ++i) {
    fill_random(input, 5);
    input.data<uint16_t>()[i] = i % 2 == 0 ? 0x7FC0 : 0xFF81;
    Quantized expected = reference_quantize(input, DType::kFloat8E5M2, 1.0F);
    Quantized got = kernel_quantize(*GetParam().table, input, DType::kFloat8E5M2, 1.0F);
    ASSERT_EQ(got.data.data<uint8_t>()[i], 0x7F);
    ASSERT_TRUE(same_bytes(got.data, expected.data)) << i;
    ASSERT_TRUE(std::isfinite(got.amax));
    ASSERT_EQ(got.amax, expected.amax);
  }
}

TEST_P(CastKernelsTest, QuantizesAPartOfAMatrixAndNothingElse) {
  constexpr int64_t kRows = 9;
  constexpr int64_t kCols = 150;
  Matrix input(DType::kBFloat16, kRows, kCols);
  fill_random(input, 3);
  Quantized whole = reference_quantize(input, DType::kFloat8E4M3, 1.0F);
  Matrix output(DType::kFloat8E4M3, kRows, kCols);
  std::memset(output.data<void>(), 0x33, output.size_bytes());
  GetParam().table->quantize[1][0]({.input = input.data<uint16_t>() + 2 * kCols + 5,
                                    .input_stride = kCols,
                                    .output = output.data<uint8_t>() + 2 * kCols + 5,
                                    .output_stride = kCols,
                                    .rows = 5,
                                    .cols = 101,
                                    .scale = 1.0F,
                                    .stream = true});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      const bool is_inside = row >= 2 && row < 7 && col >= 5 && col < 106;
      const int64_t i = row * kCols + col;
      ASSERT_EQ(output.data<uint8_t>()[i], is_inside ? whole.data.data<uint8_t>()[i] : 0x33);
    }
  }
}

TEST_P(CastKernelsTest, DequantizesEveryCodeAsTheReference) {
  for (size_t out = 0; out < std::size(kInputs); ++out) {
    for (size_t in = 0; in < std::size(kFormats); ++in) {
      // 256 codes three times and an odd rest: full vectors and a tail.
      Matrix codes(kFormats[in], 1, 3 * 256 + 13);
      for (int64_t i = 0; i < codes.numel(); ++i) {
        codes.data<uint8_t>()[i] = static_cast<uint8_t>(i);
      }
      for (const float scale_inv : {1.0F, 0.37F, 1e-6F, 3e4F, 0x1p-140F, 0.0F, -1.5F}) {
        for (const bool stream : {false, true}) {
          Matrix expected(kInputs[out], 1, codes.numel());
          Matrix got(kInputs[out], 1, codes.numel());
          te::reference::dequantize(
              {.input = codes.view(), .scale_inv = &scale_inv, .output = expected.view()}, {});
          GetParam().table->dequantize[out][in]({.input = codes.data<uint8_t>(),
                                                 .output = got.data<void>(),
                                                 .numel = codes.numel(),
                                                 .scale_inv = scale_inv,
                                                 .stream = stream});
          EXPECT_TRUE(same_bytes(got, expected))
              << te::dtype_name(kFormats[in]) << " to " << te::dtype_name(kInputs[out]) << " by "
              << scale_inv;
        }
      }
    }
  }
}

TEST_P(CastKernelsTest, TransposesAnyShape) {
  constexpr int64_t kShapes[][2] = {{1, 1},   {1, 200}, {200, 1},  {16, 16},  {32, 32}, {64, 64},
                                    {63, 65}, {64, 61}, {129, 64}, {131, 97}, {64, 256}};
  for (const auto& [rows, cols] : kShapes) {
    for (const bool stream : {false, true}) {
      Matrix input(DType::kByte, rows, cols);
      fill_random_bytes(input, 11);
      Matrix expected(DType::kByte, cols, rows);
      te::reference::transpose_bytes({.input = input.view(), .output = expected.view()}, {});
      Matrix got(DType::kByte, cols, rows);
      GetParam().table->transpose({.input = input.data<uint8_t>(),
                                   .input_stride = cols,
                                   .output = got.data<uint8_t>(),
                                   .output_stride = rows,
                                   .rows = rows,
                                   .cols = cols,
                                   .stream = stream});
      ASSERT_TRUE(same_bytes(got, expected)) << rows << " x " << cols;
    }
  }
}

TEST_P(CastKernelsTest, AmaxSkipsNaNWhereverItStands) {
  for (size_t type = 0; type < std::size(kInputs); ++type) {
    for (const int64_t numel : {0, 1, 15, 16, 64, 67, 1000}) {
      Matrix input(kInputs[type], 1, numel);
      fill_random(input, 23);
      for (int64_t nan_at = -1; nan_at < numel; nan_at += 1 + numel / 40) {
        Matrix with_nan = input;
        if (nan_at >= 0) {
          with_nan.set(nan_at, std::nanf(""));
        }
        float expected = -1.0F;
        te::reference::compute_amax({.input = with_nan.view(), .amax = &expected}, {});
        EXPECT_EQ(GetParam().table->amax[type](with_nan.data<void>(), numel), expected);
      }
    }
  }
}

TEST_P(CastKernelsTest, AmaxKeepsInfinityAndDenormals) {
  const CastKernels& kernels = *GetParam().table;
  const float large[] = {1.0F, -HUGE_VALF, 3.0F};
  EXPECT_EQ(kernels.amax[0](large, 3), HUGE_VALF);
  const float small[] = {0x1p-149F, -0x1p-140F, 0.0F};
  EXPECT_EQ(kernels.amax[0](small, 3), 0x1p-140F);
  const uint16_t smallest[] = {0x0001, 0x8000, 0x8001};
  EXPECT_EQ(kernels.amax[1](smallest, 3), 0x1p-133F);
  EXPECT_EQ(kernels.amax[2](smallest, 3), 0x1p-24F);
}

}  // namespace
