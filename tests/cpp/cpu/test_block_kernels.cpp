// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Block scaling kernels on every instruction set of this machine, bitwise against
// reference/block_scaling.h.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/block_scaling.h"
#include "cpu/io_index.h"
#include "helpers/block_scaled.h"
#include "helpers/isas.h"
#include "reference/block_scaling.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::cpu::BlockDequantizeKernels;
using te::cpu::BlockQuantizeKernels;
using te::testing::BlockCopy;
using te::testing::BlockKind;
using te::testing::fill_random;
using te::testing::fill_random_bytes;
using te::testing::Matrix;
using te::testing::same_bytes;
using te::testing::same_copy;

constexpr DType kInputs[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};

// What a tile is quantized to.
struct Plan {
  const char* name;
  BlockKind rowwise;
  BlockKind columnwise;
  bool are_powers_of_two;
  bool has_square_tiles;

  bool is_mxfp8() const { return rowwise == BlockKind::kMxRows; }
};
constexpr Plan kPlans[] = {
    {"rows, powers of two", BlockKind::kFp8Rows, BlockKind::kFp8Rows, true, false},
    {"rows", BlockKind::kFp8Rows, BlockKind::kFp8Rows, false, false},
    {"tiles, powers of two", BlockKind::kFp8Tiles, BlockKind::kFp8Tiles, true, false},
    {"rows and tiles", BlockKind::kFp8Rows, BlockKind::kFp8Tiles, false, false},
    {"tiles and rows", BlockKind::kFp8Tiles, BlockKind::kFp8Rows, true, false},
    {"mxfp8", BlockKind::kMxRows, BlockKind::kMxColumns, true, false},
    {"mxfp8 tiles", BlockKind::kMxRows, BlockKind::kMxColumns, true, true},
};

// Both copies of one quantization.
struct Copies {
  BlockCopy rowwise;
  BlockCopy columnwise;

  Copies(const Plan& plan, DType format, const Matrix& input)
      : rowwise(plan.rowwise, format, input.rows(), input.cols(), plan.are_powers_of_two),
        columnwise(plan.columnwise, format, plan.is_mxfp8() ? input.rows() : input.cols(),
                   plan.is_mxfp8() ? input.cols() : input.rows(), plan.are_powers_of_two) {}

  te::BlockQuantizedOutput output(const Plan& plan, bool with_rowwise, bool with_columnwise) {
    te::BlockQuantizedOutput output{.has_square_tiles = plan.has_square_tiles};
    output.rowwise = with_rowwise ? rowwise.view() : te::BlockScaledMatrix{};
    output.columnwise = with_columnwise ? columnwise.view() : te::BlockScaledMatrix{};
    return output;
  }
};

void reference_quantize(Matrix& input, const Plan& plan, Copies& copies) {
  if (plan.is_mxfp8()) {
    te::reference::quantize_mxfp8({.input = input.view(),
                                   .rowwise = copies.rowwise.view(),
                                   .columnwise = copies.columnwise.view(),
                                   .has_square_tiles = plan.has_square_tiles},
                                  {});
  } else {
    te::reference::quantize_fp8_blocks({.input = input.view(),
                                        .rowwise = copies.rowwise.view(),
                                        .columnwise = copies.columnwise.view()},
                                       {});
  }
}

// One tile, for every choice of copies.
::testing::AssertionResult kernel_equals_reference(const BlockQuantizeKernels& kernels,
                                                   Matrix& input, const Plan& plan, DType format) {
  const auto kernel =
      kernels.run[te::cpu::high_precision_index(input.view().dtype)][te::cpu::fp8_index(format)];
  Copies expected(plan, format, input);
  reference_quantize(input, plan, expected);
  for (int choice = 1; choice < 8; ++choice) {
    const bool with_rowwise = (choice & 1) != 0;
    const bool with_columnwise = (choice & 2) != 0;
    if (!with_rowwise && !with_columnwise) {
      continue;
    }
    Copies got(plan, format, input);
    kernel(te::cpu::whole_tile(got.output(plan, with_rowwise, with_columnwise), input.view(),
                               /*stream=*/(choice & 4) != 0));
    for (const bool is_rowwise : {true, false}) {
      if (is_rowwise ? with_rowwise : with_columnwise) {
        const auto same = is_rowwise ? same_copy(got.rowwise, expected.rowwise)
                                     : same_copy(got.columnwise, expected.columnwise);
        if (!same) {
          return ::testing::AssertionFailure()
                 << te::dtype_name(input.view().dtype) << " [" << input.rows() << ", "
                 << input.cols() << "] to " << te::dtype_name(format) << ", " << plan.name
                 << (is_rowwise ? ", rowwise: " : ", columnwise: ") << same.message();
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

class BlockQuantizeKernelsTest
    : public ::testing::TestWithParam<te::testing::NamedTable<BlockQuantizeKernels>> {};
INSTANTIATE_TEST_SUITE_P(Isas, BlockQuantizeKernelsTest,
                         ::testing::ValuesIn(TE_TABLES_OF(BlockQuantizeKernels,
                                                          block_quantize_kernels)),
                         [](const auto& info) { return info.param.isa; });

// Every 16-bit code in one tile; `stride` decides which ones share a block.
Matrix every_code(const Plan& plan, DType dtype, int stride) {
  const int64_t rows = plan.is_mxfp8() ? 32 : 64;
  Matrix input(dtype, rows, 65536 / rows);
  for (int i = 0; i < 65536; ++i) {
    input.data<uint16_t>()[i] = static_cast<uint16_t>(i * stride);
  }
  return input;
}

TEST_P(BlockQuantizeKernelsTest, QuantizesEvery16BitInputAsTheReference) {
  for (const Plan& plan : kPlans) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const int stride : {1, 4099}) {
        Matrix input = every_code(plan, dtype, stride);
        for (const DType format : kFormats) {
          ASSERT_TRUE(kernel_equals_reference(*GetParam().table, input, plan, format));
        }
      }
    }
  }
}

// Without Inf and NaN, and with a number in each block that keeps its scale in a common range: the
// fast path is taken to its end. What is larger than that number decides the scale itself.
TEST_P(BlockQuantizeKernelsTest, QuantizesEveryBf16NumberBesideALargeOneAsTheReference) {
  for (const Plan& plan : kPlans) {
    for (int exponent = -104; exponent < 128; exponent += 29) {
      Matrix input = every_code(plan, DType::kBFloat16, 1);
      for (int64_t i = 0; i < input.numel(); ++i) {
        uint16_t& bits = input.data<uint16_t>()[i];
        bits = (bits & 0x7F80) == 0x7F80 ? uint16_t{0x8000} : bits;
        if (i % 32 == (i / input.cols()) % 32) {  // one per row and column of each square
          input.set(i, std::ldexp(1.75F, exponent));
        }
      }
      for (const DType format : kFormats) {
        ASSERT_TRUE(kernel_equals_reference(*GetParam().table, input, plan, format)) << exponent;
      }
    }
  }
}

// Empty is left to the op. One row, one column, one less and more than a register, a block, a band;
// odd, prime; several blocks and bands.
constexpr int64_t kShapes[][2] = {{1, 1},    {1, 31},   {1, 32},   {1, 33},    {1, 127},
                                  {1, 1000}, {2, 64},   {3, 65},   {7, 129},   {16, 128},
                                  {17, 192}, {31, 63},  {32, 512}, {31, 1024}, {32, 1023},
                                  {32, 97},  {30, 160}, {15, 257}, {29, 641}};
// FP8 blocks alone.
constexpr int64_t kTallShapes[][2] = {{127, 127}, {128, 128}, {129, 129}, {255, 64},
                                      {256, 320}, {131, 1},   {200, 31},  {256, 1024}};

TEST_P(BlockQuantizeKernelsTest, QuantizesAnyShapeAsTheReference) {
  for (const Plan& plan : kPlans) {
    for (const DType dtype : kInputs) {
      for (const DType format : kFormats) {
        const auto check = [&](int64_t rows, int64_t cols) {
          Matrix input(dtype, rows, cols);
          fill_random(input, 17);
          ASSERT_TRUE(kernel_equals_reference(*GetParam().table, input, plan, format));
        };
        for (const auto& [rows, cols] : kShapes) {
          check(rows, cols);
        }
        for (const auto& [rows, cols] : kTallShapes) {
          if (!plan.is_mxfp8() && format == DType::kFloat8E4M3) {
            check(rows, cols);
          }
        }
      }
    }
  }
}

// A NaN, an infinity and a denormal at each position of a tile with a rest.
TEST_P(BlockQuantizeKernelsTest, OneSpecialValueAnywhereIsTreatedAsByTheReference) {
  for (const Plan& plan : kPlans) {
    for (const uint16_t special : {0x7FC1, 0xFF80, 0x8001}) {
      for (int64_t at = 0; at < 3 * 141; at += 7) {
        Matrix input(DType::kBFloat16, 3, 141);
        fill_random(input, 5);
        input.data<uint16_t>()[at] = special;
        ASSERT_TRUE(kernel_equals_reference(*GetParam().table, input, plan, DType::kFloat8E4M3))
            << at;
      }
    }
  }
}

TEST_P(BlockQuantizeKernelsTest, BlocksOfZerosAndOfTinyNumbersAreTreatedAsByTheReference) {
  for (const Plan& plan : kPlans) {
    for (const float value : {0.0F, -0.0F, 0x1p-133F, 0x1p-126F, 0x1p-120F, 0x1p-112F}) {
      Matrix input(DType::kBFloat16, 32, 256);
      fill_random(input, 9);
      for (int64_t row = 0; row < 32; ++row) {
        for (int64_t col = 0; col < 128; ++col) {
          input.set(row * 256 + col, value);
        }
      }
      for (const DType format : kFormats) {
        ASSERT_TRUE(kernel_equals_reference(*GetParam().table, input, plan, format)) << value;
      }
    }
  }
}

class BlockDequantizeKernelsTest
    : public ::testing::TestWithParam<te::testing::NamedTable<BlockDequantizeKernels>> {};
INSTANTIATE_TEST_SUITE_P(Isas, BlockDequantizeKernelsTest,
                         ::testing::ValuesIn(TE_TABLES_OF(BlockDequantizeKernels,
                                                          block_dequantize_kernels)),
                         [](const auto& info) { return info.param.isa; });

void expect_dequantized_as_reference(const BlockDequantizeKernels& kernels,
                                     const te::BlockScaledMatrix& input) {
  for (const DType dtype : kInputs) {
    Matrix expected(dtype, input.data.rows, input.data.cols);
    Matrix got = expected;
    te::reference::dequantize_blocks({.input = input, .output = expected.view()}, {});
    // In two parts, as two threads would.
    const te::DequantizeBlocksArgs args{.input = input, .output = got.view()};
    const int64_t half = input.data.rows / 2;
    kernels.run[te::cpu::high_precision_index(dtype)](args, 0, half);
    kernels.run[te::cpu::high_precision_index(dtype)](args, half, input.data.rows);
    ASSERT_TRUE(same_bytes(got, expected)) << input.data.rows << " x " << input.data.cols;
  }
}

TEST_P(BlockDequantizeKernelsTest, DequantizesFp8OfAnyShapeAsTheReference) {
  for (const auto& [rows, cols] : kTallShapes) {
    for (const DType format : kFormats) {
      for (const BlockKind kind :
           {BlockKind::kFp8Rows, BlockKind::kFp8Tiles, BlockKind::kMxRows, BlockKind::kMxColumns}) {
        BlockCopy copy(kind, format, rows, cols);
        fill_random_bytes(copy.data(), 7);
        if (copy.scales().view().dtype == DType::kFloat32) {
          fill_random(copy.scales(), 8);
        } else {
          fill_random_bytes(copy.scales(), 8);
          for (int64_t i = 0; i < copy.scales().numel(); ++i) {  // NaN times NaN has any sign
            copy.scales().data<uint8_t>()[i] &= 0x7F;
          }
        }
        expect_dequantized_as_reference(*GetParam().table, copy.view());
      }
    }
  }
}

// More columns than are decoded at once.
TEST_P(BlockDequantizeKernelsTest, DequantizesLongRowsAsTheReference) {
  for (const BlockKind kind :
       {BlockKind::kFp8Rows, BlockKind::kFp8Tiles, BlockKind::kMxRows, BlockKind::kMxColumns}) {
    BlockCopy copy(kind, DType::kFloat8E4M3, 3, 9001);
    fill_random_bytes(copy.data(), 7);
    std::memset(copy.scales().data<void>(), 0x3E, copy.scales().size_bytes());
    expect_dequantized_as_reference(*GetParam().table, copy.view());
  }
}

// Any block, also one that does not divide what is decoded at once.
TEST_P(BlockDequantizeKernelsTest, DequantizesBlocksOfAnySizeAsTheReference) {
  constexpr int64_t kBlocks[][2] = {{1, 1}, {3, 48}, {2, 1000}, {7, 16}, {5, 3}};
  Matrix codes(DType::kFloat8E5M2, 17, 2500);
  fill_random_bytes(codes, 4);
  Matrix scales(DType::kFloat32, 17, 2500);
  fill_random(scales, 5);
  for (const auto& [block_rows, block_cols] : kBlocks) {
    expect_dequantized_as_reference(*GetParam().table, {.data = codes.view(),
                                                        .scales = {.data = scales.data<void>(),
                                                                   .block_rows = block_rows,
                                                                   .block_cols = block_cols,
                                                                   .row_stride = 2500,
                                                                   .col_stride = 1}});
  }
}

TEST_P(BlockDequantizeKernelsTest, DequantizesE2M1OfAnyShapeAsTheReference) {
  for (const auto& [rows, cols] : kTallShapes) {
    const int64_t blocks = (cols + 15) / 16;
    Matrix codes(DType::kByte, rows, blocks * 8);
    Matrix scales(DType::kByte, rows, blocks);
    Matrix amax(DType::kFloat32, 1, rows);
    fill_random_bytes(codes, 1);
    fill_random_bytes(scales, 2);
    fill_random(amax, 3);
    for (const bool is_row_scaled : {false, true}) {
      expect_dequantized_as_reference(*GetParam().table,
                                      {.data = {.data = codes.data<void>(),
                                                .dtype = DType::kFloat4E2M1,
                                                .rows = rows,
                                                .cols = cols},
                                       .scales = {.data = scales.data<void>(),
                                                  .dtype = DType::kFloat8E4M3,
                                                  .block_cols = 16,
                                                  .row_stride = blocks,
                                                  .col_stride = 1,
                                                  .amax = amax.data<float>(),
                                                  .is_row_scaled = is_row_scaled}});
    }
  }
}

}  // namespace
