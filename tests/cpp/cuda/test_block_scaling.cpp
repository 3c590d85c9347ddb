// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/block_scaling.cu against reference/block_scaling.h, bit for bit.
#include <gtest/gtest.h>
#include <transformer_engine/block_scaling.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device_mirror.h"
#include "helpers/block_scaled.h"
#include "helpers/closeness.h"
#include "helpers/formats.h"
#include "reference/block_scaling.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::BlockCopy;
using te::testing::BlockKind;
using te::testing::DeviceMirror;
using te::testing::fill_random;
using te::testing::fill_random_bytes;
using te::testing::is_too_large;
using te::testing::kHighPrecision;
using te::testing::kOnDevice;
using te::testing::Matrix;
using te::testing::same_copy;

constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
// Empty, one row, one column, odd, prime, one less and one more than a block, several whole tiles,
// rows that allow vectors in one copy alone, a row beyond one tile.
constexpr int64_t kShapes[][2] = {{0, 0},    {0, 7},     {5, 0},     {1, 1},     {1, 300},
                                  {300, 1},  {17, 31},   {31, 33},   {32, 32},   {33, 64},
                                  {67, 257}, {127, 129}, {128, 128}, {129, 127}, {48, 56},
                                  {56, 48},  {3, 784},   {256, 384}};

// A quantization: which copies, of which blocks.
struct Plan {
  const char* name;
  BlockKind rowwise;
  BlockKind columnwise;
  bool has_square_tiles = false;
  bool is_rowwise_power_of_two = false;
  bool is_columnwise_power_of_two = false;
  float epsilon = 0.0F;

  bool is_mxfp8() const { return rowwise == BlockKind::kMxRows; }
};
constexpr Plan kPlans[] = {
    {"FP8 rows", BlockKind::kFp8Rows, BlockKind::kFp8Rows},
    {"FP8 rows, powers of two in one copy", BlockKind::kFp8Rows, BlockKind::kFp8Rows, false, false,
     true, 0.01F},
    {"FP8 tiles", BlockKind::kFp8Tiles, BlockKind::kFp8Tiles, false, true, false, 0.01F},
    {"FP8 rows and tiles", BlockKind::kFp8Rows, BlockKind::kFp8Tiles, false, true, true},
    {"FP8 tiles and rows", BlockKind::kFp8Tiles, BlockKind::kFp8Rows},
    {"MXFP8", BlockKind::kMxRows, BlockKind::kMxColumns},
    {"MXFP8 tiles", BlockKind::kMxRows, BlockKind::kMxColumns, true}};

struct Usage {
  bool rowwise, columnwise;
};
constexpr Usage kUsages[] = {{true, false}, {false, true}, {true, true}};

struct Copies {
  BlockCopy rowwise;
  BlockCopy columnwise;

  Copies(const Plan& plan, DType format, const Matrix& input)
      : rowwise(plan.rowwise, format, input.rows(), input.cols(), plan.is_rowwise_power_of_two),
        columnwise(plan.columnwise, format, plan.is_mxfp8() ? input.rows() : input.cols(),
                   plan.is_mxfp8() ? input.cols() : input.rows(), plan.is_columnwise_power_of_two) {
  }
};

// Calls fp8(QuantizeFp8BlocksArgs) or mx(QuantizeMxfp8Args).
template <typename Fp8, typename Mx>
void quantize(const Plan& plan, const te::TensorView& input, const te::BlockScaledMatrix& rowwise,
              const te::BlockScaledMatrix& columnwise, const float* noop, const Fp8& fp8,
              const Mx& mx, const te::Context& context) {
  if (plan.is_mxfp8()) {
    mx({.input = input,
        .rowwise = rowwise,
        .columnwise = columnwise,
        .has_square_tiles = plan.has_square_tiles,
        .noop = noop},
       context);
  } else {
    fp8({.input = input,
         .rowwise = rowwise,
         .columnwise = columnwise,
         .epsilon = plan.epsilon,
         .noop = noop},
        context);
  }
}

void expect_equal(const Plan& plan, DType format, const Usage& usage, Matrix& input,
                  const float* noop = nullptr) {
  Copies expected(plan, format, input);
  quantize(plan, input.view(), usage.rowwise ? expected.rowwise.view() : te::BlockScaledMatrix{},
           usage.columnwise ? expected.columnwise.view() : te::BlockScaledMatrix{}, noop,
           te::reference::quantize_fp8_blocks, te::reference::quantize_mxfp8, {});
  Copies got(plan, format, input);
  DeviceMirror mirror;
  quantize(plan, mirror.view(input), mirror.view_if(usage.rowwise, got.rowwise),
           mirror.view_if(usage.columnwise, got.columnwise), mirror.pointer(noop, 1),
           te::quantize_fp8_blocks, te::quantize_mxfp8, kOnDevice);
  mirror.download();
  const std::string what = te::concat(
      plan.name, " ", te::dtype_name(input.view().dtype), " ", input.rows(), " x ", input.cols(),
      " ", te::dtype_name(format), " rowwise ", usage.rowwise, " columnwise ", usage.columnwise);
  EXPECT_TRUE(same_copy(got.rowwise, expected.rowwise)) << what << ": rowwise";
  EXPECT_TRUE(same_copy(got.columnwise, expected.columnwise)) << what << ": columnwise";
}

TEST(CudaQuantizeBlocks, EqualsTheReferenceForAllOutputsAndShapes) {
  for (const auto& [rows, cols] : kShapes) {
    if (is_too_large(rows * cols)) {
      continue;
    }
    for (const DType dtype : kHighPrecision) {
      Matrix input(dtype, rows, cols);
      fill_random(input, 1);
      for (const Plan& plan : kPlans) {
        for (const Usage& usage : kUsages) {
          for (const DType format : kFormats) {
            expect_equal(plan, format, usage, input);
          }
        }
      }
    }
  }
}

// Every BF16 number, infinities, NaN and denormals among them; with a stride of 1 a block holds
// numbers of like size, with another one numbers of every size. A second time without infinity and
// NaN, so that such blocks have useful scales.
TEST(CudaQuantizeBlocks, EqualsTheReferenceForEveryBf16Input) {
  for (const int stride : {1, 4099, 257}) {
    for (const bool has_specials : {true, false}) {
      if (te::testing::kIsSlowDevice && stride != 257) {
        continue;
      }
      Matrix input(DType::kBFloat16, 256, 256);
      for (int i = 0; i < 65536; ++i) {
        const int bits = i * stride;
        const bool is_special = (bits & 0x7F80) == 0x7F80;
        input.data<uint16_t>()[i] =
            static_cast<uint16_t>(is_special && !has_specials ? bits & 0xBFFF : bits);
      }
      for (const Plan& plan : kPlans) {
        for (const DType format : kFormats) {
          if (!te::testing::kIsSlowDevice || format == DType::kFloat8E4M3) {
            expect_equal(plan, format, {true, true}, input);
          }
        }
      }
    }
  }
}

// Blocks of nothing but one number: scales that overflow, of amax 0, of infinity and of NaN.
TEST(CudaQuantizeBlocks, EqualsTheReferenceForBlocksOfOneNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float numbers[] = {0.0F,     -0.0F,     infinity, -infinity, std::nanf(""), 0x1p-149F,
                           0x1p-24F, 0x1p-133F, 448.0F,   449.0F,    65504.0F,      0x1.fep127F};
  for (const DType dtype : kHighPrecision) {
    for (const float number : numbers) {
      Matrix input(dtype, 3, 40);
      for (int64_t i = 0; i < input.numel(); ++i) {
        input.set(i, number);
      }
      for (const Plan& plan : kPlans) {
        for (const DType format : kFormats) {
          expect_equal(plan, format, {true, true}, input);
        }
      }
    }
  }
}

// Of every kind, signalling ones too, beside numbers.
TEST(CudaQuantizeBlocks, ScalesSkipNaN) {
  const std::vector<float> nans = te::testing::nan_cases();
  Matrix input(DType::kFloat32, 40, 72);
  fill_random(input, 3);
  for (int64_t i = 0; i < input.numel(); ++i) {
    if (i % 4 != 1) {
      const float nan = nans[static_cast<size_t>(i) % nans.size()];
      std::memcpy(input.data<float>() + i, &nan, sizeof nan);
    }
  }
  for (const Plan& plan : kPlans) {
    expect_equal(plan, DType::kFloat8E4M3, {true, true}, input);
  }
}

TEST(CudaQuantizeBlocks, NoopFlagLeavesEverythingUnwritten) {
  Matrix input(DType::kBFloat16, 40, 72);
  fill_random(input, 2);
  for (const Plan& plan : kPlans) {
    for (const Usage& usage : kUsages) {
      for (const float flag : {1.0F, -1.0F, std::nanf(""), 0.0F}) {
        expect_equal(plan, DType::kFloat8E4M3, usage, input, &flag);
      }
    }
  }
}

// Rows whose first byte is not aligned, though their lengths would allow vectors.
TEST(CudaQuantizeBlocks, TakesPointersThatAllowNoVectors) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kCols = 64;
  for (const DType dtype : kHighPrecision) {
    Matrix whole(dtype, 1, kRows * kCols + 1);
    fill_random(whole, 6);
    Matrix input(dtype, kRows, kCols);
    const auto element = static_cast<size_t>(te::element_size_bytes(dtype));
    std::memcpy(input.data<void>(), whole.data<char>() + element, input.size_bytes());
    for (const Plan& plan : {kPlans[1], kPlans[5]}) {
      Copies expected(plan, DType::kFloat8E4M3, input);
      quantize(plan, input.view(), expected.rowwise.view(), expected.columnwise.view(), nullptr,
               te::reference::quantize_fp8_blocks, te::reference::quantize_mxfp8, {});
      for (const bool is_input_shifted : {true, false}) {
        Copies got(plan, DType::kFloat8E4M3, input);
        Matrix rowwise(DType::kByte, 1, kRows * kCols + 1);
        Matrix columnwise(DType::kByte, 1, kRows * kCols + 1);
        DeviceMirror mirror;
        te::TensorView source = mirror.view(input);
        if (is_input_shifted) {
          source.data = static_cast<char*>(mirror.view(whole).data) + element;
        }
        te::BlockScaledMatrix shifted_rowwise = mirror.view(got.rowwise);
        te::BlockScaledMatrix shifted_columnwise = mirror.view(got.columnwise);
        if (!is_input_shifted) {
          shifted_rowwise.data.data = static_cast<char*>(mirror.view(rowwise).data) + 1;
          shifted_columnwise.data.data = static_cast<char*>(mirror.view(columnwise).data) + 1;
        }
        quantize(plan, source, shifted_rowwise, shifted_columnwise, nullptr,
                 te::quantize_fp8_blocks, te::quantize_mxfp8, kOnDevice);
        mirror.download();
        if (!is_input_shifted) {
          std::memcpy(got.rowwise.data().data<void>(), rowwise.data<char>() + 1, kRows * kCols);
          std::memcpy(got.columnwise.data().data<void>(), columnwise.data<char>() + 1,
                      kRows * kCols);
        }
        EXPECT_TRUE(same_copy(got.rowwise, expected.rowwise)) << plan.name;
        EXPECT_TRUE(same_copy(got.columnwise, expected.columnwise)) << plan.name;
      }
    }
  }
}

// The scales of a copy with other strides than those of BlockCopy: transposed, every third place.
TEST(CudaQuantizeBlocks, ScalesTakeAnyStrides) {
  for (const Plan& plan : kPlans) {
    Matrix input(DType::kBFloat16, 40, 72);
    fill_random(input, 7);
    Copies expected(plan, DType::kFloat8E4M3, input);
    Copies got(plan, DType::kFloat8E4M3, input);
    const auto strided = [](te::BlockScaledMatrix view, Matrix& scales) {
      view.scales.data = scales.data<void>();
      view.scales.row_stride = 3;
      view.scales.col_stride = 3 * ((view.data.rows - 1) / view.scales.block_rows + 1) + 1;
      return view;
    };
    std::vector<Matrix> scales;  // expected and got, rowwise and columnwise
    for (int i = 0; i < 4; ++i) {
      scales.emplace_back(plan.is_mxfp8() ? DType::kByte : DType::kFloat32, 1, 3 * 72 * 40);
      fill_random_bytes(scales.back(), 8);
    }
    quantize(plan, input.view(), strided(expected.rowwise.view(), scales[0]),
             strided(expected.columnwise.view(), scales[1]), nullptr,
             te::reference::quantize_fp8_blocks, te::reference::quantize_mxfp8, {});
    DeviceMirror mirror;
    const auto on_device = [&](BlockCopy& copy, Matrix& own) {
      te::BlockScaledMatrix view = strided(copy.view(), own);
      view.data = mirror.view(copy.data());
      view.scales.data = mirror.view(own).data;
      return view;
    };
    quantize(plan, mirror.view(input), on_device(got.rowwise, scales[2]),
             on_device(got.columnwise, scales[3]), nullptr, te::quantize_fp8_blocks,
             te::quantize_mxfp8, kOnDevice);
    mirror.download();
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(te::testing::same_bytes(scales[i + 2], scales[i])) << plan.name << " copy " << i;
    }
    EXPECT_TRUE(same_copy(got.rowwise, expected.rowwise)) << plan.name;
    EXPECT_TRUE(same_copy(got.columnwise, expected.columnwise)) << plan.name;
  }
}

// dequantize_blocks on the device and in the reference.
void expect_dequantized(te::BlockScaledMatrix on_host, te::BlockScaledMatrix on_device,
                        DeviceMirror& mirror, DType dtype, const std::string& what) {
  Matrix expected(dtype, on_host.data.rows, on_host.data.cols);
  Matrix got(dtype, on_host.data.rows, on_host.data.cols);
  te::reference::dequantize_blocks({.input = on_host, .output = expected.view()}, {});
  te::dequantize_blocks({.input = on_device, .output = mirror.view(got)}, kOnDevice);
  mirror.download();
  for (int64_t i = 0; i < got.numel(); ++i) {  // payloads of NaN are not kept
    ASSERT_TRUE(got.get(i) == expected.get(i) ||
                (std::isnan(got.get(i)) && std::isnan(expected.get(i))))
        << what << " element " << i << ": " << got.get(i) << ", " << expected.get(i);
  }
}

// Every code; scales of random bits, infinities, NaN and denormals among them.
TEST(CudaDequantizeBlocks, EqualsTheReferenceForFp8InAllLayouts) {
  for (const auto& [rows, cols] : kShapes) {
    if (is_too_large(rows * cols)) {
      continue;
    }
    for (const BlockKind kind :
         {BlockKind::kFp8Rows, BlockKind::kFp8Tiles, BlockKind::kMxRows, BlockKind::kMxColumns}) {
      for (const DType format : kFormats) {
        for (const DType dtype : kHighPrecision) {
          BlockCopy copy(kind, format, rows, cols);
          for (int64_t i = 0; i < copy.data().numel(); ++i) {
            copy.data().data<uint8_t>()[i] = static_cast<uint8_t>(i);
          }
          fill_random_bytes(copy.scales(), 4);
          DeviceMirror mirror;
          expect_dequantized(copy.view(), mirror.view(copy), mirror, dtype,
                             te::concat(rows, " x ", cols, " kind ", static_cast<int>(kind), " ",
                                        te::dtype_name(format), " ", te::dtype_name(dtype)));
        }
      }
    }
  }
}

// Blocks that no quantization here makes: sizes that are no powers of two and divide no vector.
TEST(CudaDequantizeBlocks, TakesBlocksOfAnySize) {
  for (const auto& [block_rows, block_cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 24}, {2, 4}, {100, 100}}) {
    BlockCopy copy(BlockKind::kFp8Rows, DType::kFloat8E4M3, 20, 64);
    fill_random_bytes(copy.data(), 1);
    Matrix scales(DType::kFloat32, 20, 64);
    fill_random(scales, 2);
    DeviceMirror mirror;
    te::BlockScaledMatrix on_host = copy.view();
    on_host.scales = {.data = scales.data<void>(),
                      .block_rows = block_rows,
                      .block_cols = block_cols,
                      .row_stride = 64,
                      .col_stride = 1};
    te::BlockScaledMatrix on_device = on_host;
    on_device.data = mirror.view(copy.data());
    on_device.scales.data = mirror.view(scales).data;
    expect_dequantized(on_host, on_device, mirror, DType::kFloat32,
                       te::concat("blocks ", block_rows, " x ", block_cols));
  }
}

struct Nvfp4Case {
  int64_t rows, cols, block_rows;
  bool is_row_scaled;
  float e4m3_max;
};

void expect_nvfp4(const Nvfp4Case& problem, DType dtype) {
  const int64_t blocks = (problem.cols + 15) / 16;
  Matrix codes(DType::kByte, problem.rows, blocks * 8);
  fill_random_bytes(codes, 5);
  Matrix scales(DType::kByte, problem.rows, blocks + 3);
  for (int64_t i = 0; i < scales.numel(); ++i) {
    scales.data<uint8_t>()[i] = static_cast<uint8_t>(i);
  }
  std::vector<float> amax(static_cast<size_t>(problem.rows) + 1);
  for (size_t i = 0; i < amax.size(); ++i) {
    amax[i] = 0.7F + 3.0F * static_cast<float>(i);
  }
  const te::BlockScaledMatrix on_host{.data = {.data = codes.data<void>(),
                                               .dtype = DType::kFloat4E2M1,
                                               .rows = problem.rows,
                                               .cols = problem.cols},
                                      .scales = {.data = scales.data<void>(),
                                                 .dtype = DType::kFloat8E4M3,
                                                 .block_rows = problem.block_rows,
                                                 .block_cols = 16,
                                                 .row_stride = scales.cols(),
                                                 .col_stride = 1,
                                                 .amax = amax.data(),
                                                 .is_row_scaled = problem.is_row_scaled,
                                                 .e4m3_max = problem.e4m3_max}};
  DeviceMirror mirror;
  te::BlockScaledMatrix on_device = on_host;
  on_device.data.data = mirror.view(codes).data;
  on_device.scales.data = mirror.view(scales).data;
  on_device.scales.amax = mirror.pointer(amax.data(), amax.size());
  expect_dequantized(on_host, on_device, mirror, dtype,
                     te::concat(problem.rows, " x ", problem.cols, " row scaled ",
                                problem.is_row_scaled, " ", te::dtype_name(dtype)));
}

TEST(CudaDequantizeBlocks, EqualsTheReferenceForNvfp4) {
  for (const auto& [rows, cols] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {0, 16}, {5, 0}, {1, 1}, {40, 16}, {33, 19}, {9, 24}, {3, 300}, {64, 256}}) {
    if (is_too_large(rows * cols)) {
      continue;
    }
    for (const DType dtype : kHighPrecision) {
      expect_nvfp4({rows, cols, 1, false, 448.0F}, dtype);
      expect_nvfp4({rows, cols, 1, true, 256.0F}, dtype);
      expect_nvfp4({rows, cols, 16, false, 256.0F}, dtype);
    }
  }
}

}  // namespace
