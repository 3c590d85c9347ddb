// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// NVFP4 on every instruction set of this machine, bitwise against reference/nvfp4.h, which the
// tests in ops/ compare with the written rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "cpu/nvfp4.h"
#include "cpu/nvfp4_kernels.h"
#include "helpers/closeness.h"
#include "helpers/formats.h"
#include "helpers/isas.h"
#include "helpers/nvfp4_problem.h"
#include "reference/nvfp4.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::FourOverSix;
using te::QuantizeNvfp4Args;
using te::cpu::HadamardKernels;
using te::cpu::Nvfp4Kernels;
using te::testing::all_nvfp4_cases;
using te::testing::expect_same_outputs;
using te::testing::Matrix;
using te::testing::Nvfp4Case;
using te::testing::Nvfp4Outputs;

std::vector<te::testing::NamedTable<Nvfp4Kernels>> tables() {
  return TE_TABLES_OF(Nvfp4Kernels, nvfp4_kernels);
}
std::vector<te::testing::NamedTable<HadamardKernels>> hadamard_tables() {
  return TE_TABLES_OF(HadamardKernels, hadamard_kernels);
}

// The reference once, then every instruction set and number of threads.
void expect_reference(Matrix& input, const Nvfp4Case& c,
                      const std::vector<int>& thread_counts = {1}) {
  Nvfp4Outputs expected(input, c);
  const QuantizeNvfp4Args args = expected.args(input, c);
  te::reference::compute_nvfp4_amax({args}, {});
  te::reference::quantize_nvfp4(args, {});
  for (size_t isa = 0; isa < tables().size(); ++isa) {
    const auto table = tables()[isa];
    for (const int threads : thread_counts) {
      Nvfp4Outputs got(input, c);
      const QuantizeNvfp4Args kernel_args = got.args(input, c);
      te::cpu::compute_nvfp4_amax(*hadamard_tables()[isa].table, kernel_args, threads);
      te::cpu::quantize_nvfp4(*table.table, kernel_args, threads);
      expect_same_outputs(
          got, expected,
          te::concat(table.isa, " ", te::dtype_name(input.view().dtype), " ", input.rows(), " x ",
                     input.cols(), " ", c.text(), " threads ", threads));
    }
  }
}

void fill_permuted(Matrix& input, uint32_t seed, bool with_special_values) {
  std::vector<uint16_t> codes(65536);
  std::iota(codes.begin(), codes.end(), uint16_t{0});
  std::mt19937 generator(seed);
  std::shuffle(codes.begin(), codes.end(), generator);
  for (int64_t i = 0; i < input.numel(); ++i) {
    const uint16_t code = codes[i];
    const bool is_special = (code & 0x7F80) == 0x7F80;
    input.data<uint16_t>()[i] =
        is_special && !with_special_values ? static_cast<uint16_t>(code & 0x807F) : code;
  }
}

// Each BF16 number once: in a random order, where most blocks hold numbers of all sizes.
TEST(Nvfp4Kernels, EveryBf16InMixedBlocks) {
  for (const bool with_special_values : {false, true}) {
    Matrix input(DType::kBFloat16, 256, 256);
    fill_permuted(input, 1, with_special_values);
    for (const Nvfp4Case& c : all_nvfp4_cases()) {
      if (with_special_values || (c.has_rowwise && c.has_columnwise)) {
        expect_reference(input, c);
      }
    }
  }
}

// Each BF16 number once, beside numbers of its own size: a row has numbers within a factor of 4,
// and an amax of its own where the rows are scaled.
TEST(Nvfp4Kernels, EveryBf16AmongItsLike) {
  Matrix input(DType::kBFloat16, 256, 256);
  std::mt19937 generator(2);
  for (int row = 0; row < 256; ++row) {
    std::vector<uint16_t> codes(256);
    for (int col = 0; col < 256; ++col) {  // 128 mantissas, both signs, one exponent a row
      codes[col] = static_cast<uint16_t>((col << 8 & 0x8000) | row << 7 | (col & 0x7F));
    }
    std::shuffle(codes.begin(), codes.end(), generator);
    std::copy(codes.begin(), codes.end(), input.data<uint16_t>() + row * 256);
  }
  for (const Nvfp4Case& c : all_nvfp4_cases()) {
    expect_reference(input, c);
  }
}

// S = 1: a row per E4M3 scale d holds d times each E2M1 number, then the midpoints and their
// neighbours.
TEST(Nvfp4Kernels, EveryScaleWithEveryCodeAndTie) {
  std::vector<float> cases = te::testing::rounding_cases(te::testing::kE2M1);
  std::erase_if(cases, [](float x) { return std::abs(x) > 6.0F; });
  const auto groups = static_cast<int64_t>(cases.size() + 14) / 15;
  Matrix input(DType::kFloat32, 127, groups * 16);
  for (int64_t i = 0; i < input.numel(); ++i) {
    const auto scale = static_cast<float>(te::testing::kE4M3.value(i / input.cols()));
    const int64_t place = i % 16;
    const int64_t index = i % input.cols() / 16 * 15 + place - 1;
    input.set(i, scale * (place == 0                                   ? 6.0F
                          : index < static_cast<int64_t>(cases.size()) ? cases[index]
                                                                       : 0.0F));
  }
  const Nvfp4Case plain;
  expect_reference(input, plain);
  Nvfp4Outputs outputs(input, plain);
  const QuantizeNvfp4Args args = outputs.args(input, plain);
  te::cpu::compute_nvfp4_amax({args}, {});
  te::cpu::quantize_nvfp4(args, {});
  std::set<uint8_t> scales, codes;
  for (int64_t row = 0; row < 127; ++row) {
    ASSERT_EQ(outputs.rowwise.scale(row, 0), row);
    for (int64_t col = 0; col < input.cols(); ++col) {
      codes.insert(outputs.rowwise.code(row, col));
    }
  }
  EXPECT_EQ(codes.size(), 16U);
  for (const Nvfp4Case& c : all_nvfp4_cases()) {
    expect_reference(input, c);
  }
}

// Empty, one row, one column, odd, prime, a block, one less, one more, a tile, one more.
constexpr int64_t kShapes[][2] = {{0, 0},    {0, 7},    {5, 0},    {1, 1},    {1, 100}, {100, 1},
                                  {17, 31},  {16, 16},  {15, 15},  {17, 17},  {37, 53}, {48, 128},
                                  {16, 127}, {33, 129}, {127, 33}, {128, 48}, {129, 19}};

TEST(Nvfp4Kernels, AnyShapeTypeAndUsage) {
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : te::testing::kHighPrecision) {
      Matrix input(dtype, rows, cols);
      te::testing::fill_normal(input, 5);
      for (const Nvfp4Case& c : all_nvfp4_cases()) {
        expect_reference(input, c,
                         rows * cols > 2000 ? std::vector<int>{1, 2} : std::vector<int>{1});
      }
    }
  }
}

// More than one tile, by any number of threads.
TEST(Nvfp4Kernels, SeveralTiles) {
  Matrix input(DType::kBFloat16, 261, 1043);
  te::testing::fill_normal(input, 8);
  const Nvfp4Case cases[] = {{.has_hadamard = true},
                             {.has_hadamard = true, .is_stochastic = true},
                             {.is_row_scaled = true},
                             {.has_square_tiles = true}};
  for (const Nvfp4Case& c : cases) {
    expect_reference(input, c, {1, 2, 3});
  }
}

// One special value at every place of a square: what is beside it must not notice.
TEST(Nvfp4Kernels, OneSpecialValueAnywhere) {
  Matrix ordinary(DType::kBFloat16, 18, 34);
  te::testing::fill_normal(ordinary, 3);
  const uint16_t specials[] = {0x7FC0, 0xFF81, 0x7F80, 0xFF80, 0x7F7F, 0xFF7F, 0x0001, 0x7E00};
  const Nvfp4Case cases[] = {{}, {.has_hadamard = true}, {.has_square_tiles = true}};
  for (int64_t i = 0; i < ordinary.numel(); i += 1) {
    Matrix input = ordinary;
    input.data<uint16_t>()[i] = specials[i % 8];
    for (const Nvfp4Case& c : cases) {
      expect_reference(input, c);
    }
  }
}

// Large numbers of mixed signs overflow within the transform: Inf and NaN side by side.
TEST(Nvfp4Kernels, OverflowWithinTheTransform) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Matrix input(dtype, 32, 32);
    std::mt19937 generator(4);
    for (int64_t i = 0; i < input.numel(); ++i) {
      input.set(i, (generator() & 1) != 0 ? 3e38F : (generator() & 1) != 0 ? -3e38F : 1.0F);
    }
    expect_reference(input, {.has_hadamard = true});
  }
}

// Denormal results of the transform round where they are multiplied by 1 / 4.
TEST(Nvfp4Kernels, DenormalsWithinTheTransform) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Matrix input(dtype, 32, 32);
    std::mt19937 generator(6);
    for (int64_t i = 0; i < input.numel(); ++i) {
      input.set(i, std::ldexp(static_cast<float>(generator() % 2001) - 1000.0F, -149));
    }
    expect_reference(input, {.has_hadamard = true});
  }
}

// Outputs large and aligned enough for stores around the caches.
TEST(Nvfp4Kernels, LargeAlignedOutputs) {
  constexpr int64_t kRows = 2048;
  constexpr int64_t kCols = 2176;
  Matrix input(DType::kBFloat16, kRows, kCols);
  te::testing::fill_normal(input, 12);
  const Nvfp4Case c{.has_hadamard = true};
  Nvfp4Outputs expected(input, c);
  const QuantizeNvfp4Args args = expected.args(input, c);
  te::reference::compute_nvfp4_amax({args}, {});
  te::reference::quantize_nvfp4(args, {});
  constexpr size_t kBytes = kRows * kCols / 2;
  std::vector<uint8_t> memory[2];
  for (const auto& table : tables()) {
    QuantizeNvfp4Args aligned = args;
    for (auto* copy : {&aligned.rowwise, &aligned.columnwise}) {
      std::vector<uint8_t>& bytes = memory[copy == &aligned.columnwise];
      bytes.assign(kBytes + 64, 0);
      const auto address = reinterpret_cast<uintptr_t>(bytes.data());
      copy->data.data = bytes.data() + (64 - address % 64) % 64;
    }
    te::cpu::quantize_nvfp4(*table.table, aligned, 2);
    EXPECT_EQ(std::memcmp(aligned.rowwise.data.data, args.rowwise.data.data, kBytes), 0)
        << table.isa;
    EXPECT_EQ(std::memcmp(aligned.columnwise.data.data, args.columnwise.data.data, kBytes), 0)
        << table.isa;
  }
}

// Scales with any strides: transposed, with gaps.
TEST(Nvfp4Kernels, AnyScaleStrides) {
  Matrix input(DType::kFloat16, 35, 150);
  te::testing::fill_normal(input, 13);
  const Nvfp4Case c;
  Nvfp4Outputs expected(input, c);
  const QuantizeNvfp4Args args = expected.args(input, c);
  te::reference::compute_nvfp4_amax({args}, {});
  te::reference::quantize_nvfp4(args, {});
  for (const auto& table : tables()) {
    QuantizeNvfp4Args strided = args;
    std::vector<uint8_t> scales(40 * 2 * 10, 0x5B);
    strided.columnwise = {};
    strided.rowwise.scales.data = scales.data();
    strided.rowwise.scales.row_stride = 2;
    strided.rowwise.scales.col_stride = 80;
    te::cpu::quantize_nvfp4(*table.table, strided, 1);
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t block = 0; block < 10; ++block) {
        const uint8_t* got = scales.data() + row * 2 + block * 80;
        ASSERT_EQ(got[0], row < 35 ? expected.rowwise.scale(row, block * 16) : 0x5B);
        ASSERT_EQ(got[1], 0x5B);
      }
    }
  }
}

}  // namespace
