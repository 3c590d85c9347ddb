// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/nvfp4.cu against reference/nvfp4.h, bit for bit.
#include <gtest/gtest.h>
#include <transformer_engine/block_scaling.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/device_mirror.h"
#include "helpers/closeness.h"
#include "helpers/nvfp4_problem.h"
#include "reference/nvfp4.h"

namespace {

namespace te = transformer_engine;
using te::BlockScaledMatrix;
using te::DType;
using te::FourOverSix;
using te::QuantizeNvfp4Args;
using te::testing::DeviceMirror;
using te::testing::expect_same_outputs;
using te::testing::fill_random;
using te::testing::is_too_large;
using te::testing::kHighPrecision;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::Matrix;
using te::testing::Nvfp4Case;
using te::testing::Nvfp4Copy;
using te::testing::Nvfp4Outputs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Empty, one row, one column, odd, prime, a block, one less, one more, a tile and its neighbours,
// rows that allow vectors beside a rest of rows, several tiles.
constexpr int64_t kShapes[][2] = {{0, 0},   {0, 7},    {5, 0},    {1, 1},    {1, 100}, {100, 1},
                                  {17, 31}, {16, 16},  {15, 15},  {17, 17},  {37, 53}, {64, 128},
                                  {63, 40}, {65, 129}, {80, 144}, {7, 1040}, {131, 24}};

void place_on_device(BlockScaledMatrix& matrix, Nvfp4Copy& copy, DeviceMirror& mirror) {
  if (!matrix.is_wanted()) {
    return;
  }
  matrix.data.data = mirror.view(copy.data).data;
  matrix.scales.data = mirror.view(copy.scales).data;
  matrix.scales.amax = mirror.pointer(copy.amax.data(), copy.amax.size());
}

// The same arguments, in device memory.
QuantizeNvfp4Args device_args(Matrix& input, const Nvfp4Case& c, Nvfp4Outputs& outputs,
                              DeviceMirror& mirror) {
  QuantizeNvfp4Args args = outputs.args(input, c);
  args.input = mirror.view(input);
  place_on_device(args.rowwise, outputs.rowwise, mirror);
  place_on_device(args.columnwise, outputs.columnwise, mirror);
  return args;
}

std::string text(Matrix& input, const Nvfp4Case& c) {
  return te::concat(te::dtype_name(input.view().dtype), " ", input.rows(), " x ", input.cols(), " ",
                    c.text());
}

void expect_equal_to_reference(Matrix& input, const Nvfp4Case& c) {
  Nvfp4Outputs expected(input, c);
  const QuantizeNvfp4Args host = expected.args(input, c);
  te::reference::compute_nvfp4_amax({host}, {});
  te::reference::quantize_nvfp4(host, {});
  Nvfp4Outputs got(input, c);
  DeviceMirror mirror;
  const QuantizeNvfp4Args args = device_args(input, c, got, mirror);
  te::compute_nvfp4_amax(args, kOnDevice);
  te::quantize_nvfp4(args, kOnDevice);
  mirror.download();
  expect_same_outputs(got, expected, text(input, c));
}

// All combinations; under the race detector those that differ in what threads exchange.
std::vector<Nvfp4Case> cases() {
  std::vector<Nvfp4Case> all = te::testing::all_nvfp4_cases();
  if (kIsSlowDevice) {
    std::erase_if(all, [](const Nvfp4Case& c) {
      return c.e4m3_max != 448.0F || !c.has_rowwise || !c.has_columnwise ||
             c.four_over_six == FourOverSix::kMeanSquaredError;
    });
  }
  return all;
}

// Tests whose subject is values alone: they show the race detector nothing new.
#define SKIP_ON_SLOW_DEVICE() \
  if (kIsSlowDevice) GTEST_SKIP() << "about values, which do not change what threads do"

TEST(CudaNvfp4, EqualsTheReferenceForAllOptionsAndShapes) {
  for (const auto& [rows, cols] : kShapes) {
    if (is_too_large(rows * cols) || (kIsSlowDevice && rows * cols < 256)) {
      continue;
    }
    Matrix input(DType::kBFloat16, rows, cols);
    fill_random(input, 7);
    for (const Nvfp4Case& c : cases()) {
      expect_equal_to_reference(input, c);
    }
  }
}

TEST(CudaNvfp4, EqualsTheReferenceForAllInputTypes) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{33, 48}, {19, 145}}) {
    for (const DType dtype : kHighPrecision) {
      if (is_too_large(rows * cols) || (kIsSlowDevice && dtype == DType::kBFloat16)) {
        continue;
      }
      Matrix input(dtype, rows, cols);
      fill_random(input, 8);
      for (const Nvfp4Case& c : cases()) {
        expect_equal_to_reference(input, c);
      }
    }
  }
}

// Magnitudes of all sizes, zeros of both signs, ties of E2M1, denormals, infinities and NaN, so
// placed that many blocks and rows have none of the latter.
TEST(CudaNvfp4, EqualsTheReferenceForSpecialValues) {
  SKIP_ON_SLOW_DEVICE();
  const float specials[] = {
      0.0F,     -0.0F,   0.25F,         0.75F,          -1.25F,    1.75F,     2.5F,  -3.5F,
      5.0F,     -6.0F,   0x1p-149F,     -0x1p-140F,     0x1p-126F, -3e38F,    1e30F, -1e-30F,
      0x1p-10F, -448.0F, std::nanf(""), -std::nanf(""), kInfinity, -kInfinity};
  constexpr size_t kFinite = 18;
  constexpr size_t kWithNaN = 20;
  for (const size_t count : {size_t{10}, size_t{13}, kFinite, kWithNaN, std::size(specials)}) {
    Matrix input(DType::kFloat32, 35, 44);
    std::mt19937 generator(static_cast<uint32_t>(count));
    for (int64_t i = 0; i < input.numel(); ++i) {
      const bool is_rare = generator() % 16 == 0;
      input.set(i, specials[generator() % (is_rare ? count : std::min<size_t>(count, 10))]);
    }
    for (const Nvfp4Case& c : cases()) {
      expect_equal_to_reference(input, c);
    }
  }
}

// Sets the amax of both copies, as a reduction over devices may, and quantizes.
void expect_equal_for_amax(Matrix& input, const Nvfp4Case& c, float amax) {
  Nvfp4Outputs expected(input, c);
  Nvfp4Outputs got(input, c);
  for (Nvfp4Copy* copy : {&expected.rowwise, &expected.columnwise, &got.rowwise, &got.columnwise}) {
    std::fill(copy->amax.begin(), copy->amax.end(), amax);
  }
  expected.columnwise.amax[0] = got.columnwise.amax[0] = amax * 1.25F;  // each has its own
  te::reference::quantize_nvfp4(expected.args(input, c), {});
  DeviceMirror mirror;
  te::quantize_nvfp4(device_args(input, c, got, mirror), kOnDevice);
  mirror.download();
  expect_same_outputs(got, expected, te::concat(text(input, c), " given amax ", amax));
}

// Every BF16 number, infinities, NaN and denormals among them, under amaxes of all sizes.
TEST(CudaNvfp4, EqualsTheReferenceForEveryBf16InputAndAnyAmax) {
  SKIP_ON_SLOW_DEVICE();
  Matrix input(DType::kBFloat16, 256, 256);
  for (int i = 0; i < 65536; ++i) {
    input.data<uint16_t>()[i] = static_cast<uint16_t>(i);
  }
  for (const float amax : {2688.0F, 3.7F, 1e-20F}) {
    expect_equal_for_amax(input, {}, amax);
    expect_equal_for_amax(input, {.is_stochastic = true}, amax);
    expect_equal_for_amax(input, {.has_hadamard = true}, amax);
    expect_equal_for_amax(input, {.four_over_six = FourOverSix::kMeanAbsoluteError}, amax);
    expect_equal_for_amax(input, {.four_over_six = FourOverSix::kMeanSquaredError}, amax);
  }
}

TEST(CudaNvfp4, EqualsTheReferenceForUnusableAmaxes) {
  SKIP_ON_SLOW_DEVICE();
  Matrix input(DType::kFloat16, 33, 40);
  fill_random(input, 9);
  for (const float amax : {0.0F, std::nanf(""), kInfinity, 0x1p-149F, 7e-36F, 3e38F}) {
    for (const Nvfp4Case& c : cases()) {
      if (c.has_rowwise) {
        expect_equal_for_amax(input, c, amax);
      }
    }
  }
}

TEST(CudaNvfp4, EqualsTheReferenceForAnySignsAndSeed) {
  SKIP_ON_SLOW_DEVICE();
  Matrix input(DType::kBFloat16, 21, 24);
  fill_random(input, 10);
  for (const uint16_t signs : {0x0000, 0xFFFF, 0x8001, 0x1234}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
      expect_equal_to_reference(
          input, {.has_hadamard = true, .is_stochastic = true, .signs = signs, .seed = seed});
    }
  }
}

TEST(CudaNvfp4, ReadsASeedInDeviceMemoryInPlaceOfTheNumber) {
  Matrix input(DType::kBFloat16, 21, 24);
  fill_random(input, 10);
  for (const bool has_hadamard : {false, true}) {
    Nvfp4Case c{.has_hadamard = has_hadamard, .is_stochastic = true, .seed = uint64_t{7} << 40};
    Nvfp4Outputs expected(input, c);
    const QuantizeNvfp4Args host = expected.args(input, c);
    te::reference::compute_nvfp4_amax({host}, {});
    te::reference::quantize_nvfp4(host, {});
    uint64_t seed = c.seed;
    c.seed = 1;
    Nvfp4Outputs got(input, c);
    DeviceMirror mirror;
    QuantizeNvfp4Args args = device_args(input, c, got, mirror);
    args.device_seed = mirror.pointer(&seed, 1);
    te::compute_nvfp4_amax(args, kOnDevice);
    te::quantize_nvfp4(args, kOnDevice);
    mirror.download();
    expect_same_outputs(got, expected, text(input, c));
  }
}

// Views that begin in the middle of device memory: input by elements, codes by bytes.
TEST(CudaNvfp4, TakesPointersOfAnyAlignment) {
  for (const DType dtype : kHighPrecision) {
    const int64_t element = te::element_size_bytes(dtype);
    for (const int64_t offset : {1, 2, 4}) {
      for (const int64_t code_offset : {1, 8}) {
        if (kIsSlowDevice && (offset != 1 || code_offset != 1)) {
          continue;
        }
        for (const bool has_hadamard : {false, true}) {
          const Nvfp4Case c{.has_hadamard = has_hadamard};
          constexpr int64_t kRows = 48;
          constexpr int64_t kCols = 32;
          Matrix input(dtype, kRows, kCols);
          fill_random(input, 11);
          Nvfp4Outputs expected(input, c);
          const QuantizeNvfp4Args host = expected.args(input, c);
          te::reference::compute_nvfp4_amax({host}, {});
          te::reference::quantize_nvfp4(host, {});

          Matrix shifted(dtype, 1, kRows * kCols + offset);
          std::memcpy(shifted.data<char>() + offset * element, input.data<char>(),
                      input.size_bytes());
          Nvfp4Outputs got(input, c);
          Matrix rows(DType::kByte, 1, kRows * kCols / 2 + code_offset);
          Matrix columns(DType::kByte, 1, kRows * kCols / 2 + code_offset);
          DeviceMirror mirror;
          QuantizeNvfp4Args args = device_args(input, c, got, mirror);
          args.input.data =
              mirror.pointer(shifted.data<char>(), shifted.size_bytes()) + offset * element;
          args.rowwise.data.data =
              mirror.pointer(rows.data<char>(), rows.size_bytes()) + code_offset;
          args.columnwise.data.data =
              mirror.pointer(columns.data<char>(), columns.size_bytes()) + code_offset;
          te::compute_nvfp4_amax(args, kOnDevice);
          te::quantize_nvfp4(args, kOnDevice);
          mirror.download();
          std::memcpy(got.rowwise.data.data<char>(), rows.data<char>() + code_offset,
                      got.rowwise.data.size_bytes());
          std::memcpy(got.columnwise.data.data<char>(), columns.data<char>() + code_offset,
                      got.columnwise.data.size_bytes());
          expect_same_outputs(
              got, expected,
              te::concat(text(input, c), " from element ", offset, ", codes from ", code_offset));
        }
      }
    }
  }
}

// Scales along columns: neither stride is that of the ordinary layout.
TEST(CudaNvfp4, PutsScalesWhereTheStridesSay) {
  Matrix input(DType::kBFloat16, 37, 70);
  fill_random(input, 12);
  const Nvfp4Case c;
  Nvfp4Outputs expected(input, c);
  Nvfp4Outputs got(input, c);
  const auto transpose_scales = [](QuantizeNvfp4Args args) {
    for (BlockScaledMatrix* matrix : {&args.rowwise, &args.columnwise}) {
      matrix->scales.row_stride = 1;
      matrix->scales.col_stride = matrix->data.rows;
    }
    return args;
  };
  const QuantizeNvfp4Args host = transpose_scales(expected.args(input, c));
  te::reference::compute_nvfp4_amax({host}, {});
  te::reference::quantize_nvfp4(host, {});
  DeviceMirror mirror;
  const QuantizeNvfp4Args args = transpose_scales(device_args(input, c, got, mirror));
  te::compute_nvfp4_amax(args, kOnDevice);
  te::quantize_nvfp4(args, kOnDevice);
  mirror.download();
  expect_same_outputs(got, expected, "transposed scales");
}

TEST(CudaNvfp4, NoopFlagLeavesEverythingUnwritten) {
  Matrix input(DType::kBFloat16, 30, 40);
  fill_random(input, 13);
  const Nvfp4Case some[] = {
      {},
      {.has_hadamard = true, .is_stochastic = true},
      {.is_row_scaled = true},
      {.has_square_tiles = true, .four_over_six = FourOverSix::kMeanSquaredError}};
  for (const Nvfp4Case& c : some) {
    for (float flag : {1.0F, -1.0F, 0.0F}) {
      Nvfp4Outputs expected(input, c);
      if (flag == 0.0F) {
        te::reference::compute_nvfp4_amax({expected.args(input, c)}, {});
        te::reference::quantize_nvfp4(expected.args(input, c), {});
      }
      Nvfp4Outputs got(input, c);
      DeviceMirror mirror;
      QuantizeNvfp4Args args = device_args(input, c, got, mirror);
      args.noop = mirror.pointer(&flag, 1);
      te::compute_nvfp4_amax(args, kOnDevice);
      te::quantize_nvfp4(args, kOnDevice);
      mirror.download();
      expect_same_outputs(got, expected, te::concat(text(input, c), " noop ", flag));
    }
  }
}

// Either amax alone, of copies that have no data; runs of several blocks and segments.
TEST(CudaNvfp4Amax, IsFilledWhereItIsAskedFor) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{0, 3}, {3, 0}, {1, 9}, {40, 70}, {17, 1027}, {3, 20000}}) {
    if (is_too_large(rows * cols) && cols != 1027) {
      continue;
    }
    for (const DType dtype : kHighPrecision) {
      if (kIsSlowDevice && dtype != DType::kBFloat16) {
        continue;
      }
      Matrix input(dtype, rows, cols);
      fill_random(input, 14);
      if (input.numel() > 5) {
        input.set(5, std::nanf(""));
      }
      for (int choice = 0; choice < 16; ++choice) {
        const Nvfp4Case c{.has_rowwise = (choice & 1) != 0,
                          .has_columnwise = (choice & 2) != 0,
                          .has_hadamard = (choice & 4) != 0,
                          .is_row_scaled = (choice & 8) != 0};
        if ((!c.has_rowwise && (c.is_row_scaled || !c.has_columnwise)) ||
            (c.is_row_scaled && c.has_hadamard)) {
          continue;
        }
        Nvfp4Outputs expected(input, c);
        te::reference::compute_nvfp4_amax({expected.args(input, c)}, {});
        Nvfp4Outputs got(input, c);
        DeviceMirror mirror;
        QuantizeNvfp4Args args = device_args(input, c, got, mirror);
        for (BlockScaledMatrix* matrix : {&args.rowwise, &args.columnwise}) {
          matrix->data.data = nullptr;
          matrix->scales.data = nullptr;
        }
        te::compute_nvfp4_amax(args, kOnDevice);
        mirror.download();
        expect_same_outputs(got, expected, text(input, c));
      }
    }
  }
}

}  // namespace
