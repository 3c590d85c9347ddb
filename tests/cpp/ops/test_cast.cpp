// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// quantize, dequantize, transpose_bytes, compute_amax, compute_scale_from_amax through their public
// entries: every combination of outputs, threads and shapes against reference/cast.h, and every
// refusal. Values are checked against independent definitions in tests/cpp/numerics.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>

#include <cmath>
#include <functional>
#include <string>

#include "helpers/errors.h"
#include "helpers/formats.h"
#include "helpers/matrix.h"
#include "reference/cast.h"

namespace {

namespace te = transformer_engine;
using te::Context;
using te::DType;
using te::QuantizeArgs;
using te::TensorView;
using te::testing::expect_error;
using te::testing::fill_random;
using te::testing::fill_random_bytes;
using te::testing::Matrix;
using te::testing::same_bytes;

constexpr DType kInputs[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
// Empty, one row, one column, odd, prime, a whole tile, tiles with a rest, more than one chunk.
constexpr int64_t kShapes[][2] = {{0, 0},     {0, 7},     {5, 0},    {1, 1},   {1, 1000},
                                  {1000, 1},  {17, 31},   {64, 256}, {63, 65}, {129, 67},
                                  {256, 256}, {257, 511}, {3, 20001}};

struct Wanted {
  bool data, data_transpose, amax, scale_inv;
};
constexpr Wanted kWanted[] = {{true, false, false, false}, {true, false, true, true},
                              {false, true, true, true},   {true, true, true, true},
                              {true, true, false, false},  {false, false, true, false}};

// All outputs of one quantization, filled so that unwritten elements show.
struct Outputs {
  Matrix data, data_transpose;
  float amax = 0.25F;  // there is something to accumulate onto
  float scale_inv = -7.0F;
  float scale;

  Outputs(const Matrix& input, DType format, float scale_value)
      : data(format, input.rows(), input.cols()),
        data_transpose(format, input.cols(), input.rows()),
        scale(scale_value) {
    std::memset(data.data<void>(), 0x55, data.size_bytes());
    std::memset(data_transpose.data<void>(), 0x55, data_transpose.size_bytes());
  }

  te::QuantizedOutput view(const Wanted& wanted) {
    te::QuantizedOutput output;
    output.data = wanted.data ? data.view() : TensorView{};
    output.data_transpose = wanted.data_transpose ? data_transpose.view() : TensorView{};
    output.amax = wanted.amax ? &amax : nullptr;
    output.scale_inv = wanted.scale_inv ? &scale_inv : nullptr;
    output.scale = &scale;
    return output;
  }
};

void expect_same(Outputs& got, Outputs& expected, const std::string& what) {
  EXPECT_TRUE(same_bytes(got.data, expected.data)) << what;
  EXPECT_TRUE(same_bytes(got.data_transpose, expected.data_transpose)) << what;
  EXPECT_EQ(got.amax, expected.amax) << what;
  EXPECT_EQ(got.scale_inv, expected.scale_inv) << what;
}

TEST(Quantize, EqualsTheReferenceForAllOutputsShapesAndThreads) {
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : kInputs) {
      Matrix input(dtype, rows, cols);
      fill_random(input, 1);
      for (const Wanted& wanted : kWanted) {
        for (const int threads : {1, 2, 3}) {
          const DType format = kFormats[threads % 2];
          Outputs expected(input, format, 0.7F);
          te::reference::quantize({.input = input.view(), .output = expected.view(wanted)}, {});
          Outputs got(input, format, 0.7F);
          te::quantize({.input = input.view(), .output = got.view(wanted)},
                       {.num_threads = threads});
          expect_same(got, expected,
                      te::concat(te::dtype_name(dtype), " ", rows, " x ", cols, ", ", threads));
        }
      }
    }
  }
}

// Outputs beyond the size from which stores go around the caches.
TEST(Quantize, EqualsTheReferenceForLargeOutputs) {
  Matrix input(DType::kBFloat16, 2112, 4096);
  fill_random(input, 4);
  for (const Wanted& wanted : {kWanted[1], kWanted[2], kWanted[3]}) {
    Outputs expected(input, DType::kFloat8E4M3, 3.0F);
    te::reference::quantize({.input = input.view(), .output = expected.view(wanted)}, {});
    Outputs got(input, DType::kFloat8E4M3, 3.0F);
    te::quantize({.input = input.view(), .output = got.view(wanted)}, {.num_threads = 2});
    expect_same(got, expected, "large");
  }
}

TEST(Quantize, ScaleIsOneWhenAbsent) {
  Matrix input(DType::kFloat32, 1, 3);
  for (int i = 0; i < 3; ++i) {
    input.set(i, static_cast<float>(i));
  }
  Matrix data(DType::kFloat8E4M3, 1, 3);
  float scale_inv = 0.0F;
  QuantizeArgs args{.input = input.view(), .output = {}};
  args.output.data = data.view();
  args.output.scale_inv = &scale_inv;
  te::quantize(args, {});
  EXPECT_EQ(data.data<uint8_t>()[0], 0x00);
  EXPECT_EQ(data.data<uint8_t>()[1], 0x38);
  EXPECT_EQ(data.data<uint8_t>()[2], 0x40);
  EXPECT_EQ(scale_inv, 1.0F);
}

TEST(Quantize, AmaxAccumulates) {
  Matrix input(DType::kFloat32, 1, 2);
  input.set(0, -3.0F);
  input.set(1, std::nanf(""));
  for (const float before : {0.0F, 3.5F}) {
    float amax = before;
    QuantizeArgs args{.input = input.view(), .output = {}};
    args.output.amax = &amax;
    te::quantize(args, {});
    EXPECT_EQ(amax, before > 3.0F ? before : 3.0F);
  }
}

TEST(Quantize, NoopFlagLeavesEverythingUnwritten) {
  Matrix input(DType::kBFloat16, 70, 300);
  fill_random(input, 2);
  const Wanted all = {true, true, true, true};
  for (const float flag : {1.0F, -1.0F, 0.0F}) {
    Outputs untouched(input, DType::kFloat8E4M3, 1.0F);
    Outputs got(input, DType::kFloat8E4M3, 1.0F);
    te::quantize({.input = input.view(), .output = got.view(all), .noop = &flag}, {});
    if (flag != 0.0F) {
      expect_same(got, untouched, "noop");
    } else {
      EXPECT_FALSE(same_bytes(got.data, untouched.data));
      EXPECT_EQ(got.scale_inv, 1.0F);
    }
  }
}

TEST(Quantize, AnEmptyInputWritesScaleInvAndKeepsAmax) {
  float amax = 2.0F;
  float scale = 4.0F;
  float scale_inv = 0.0F;
  QuantizeArgs args{.input = {.dtype = DType::kBFloat16, .rows = 0, .cols = 16}, .output = {}};
  args.output.amax = &amax;
  args.output.scale = &scale;
  args.output.scale_inv = &scale_inv;
  te::quantize(args, {});
  EXPECT_EQ(amax, 2.0F);
  EXPECT_EQ(scale_inv, 0.25F);
}

TEST(Dequantize, EqualsTheReferenceForAllTypesShapesAndThreads) {
  const float scale_inv = 0.3F;
  for (const auto& [rows, cols] : kShapes) {
    for (const DType format : kFormats) {
      Matrix codes(format, rows, cols);
      fill_random_bytes(codes, 9);
      for (const DType dtype : kInputs) {
        for (const float* scale : {static_cast<const float*>(nullptr), &scale_inv}) {
          Matrix expected(dtype, rows, cols);
          te::reference::dequantize(
              {.input = codes.view(), .scale_inv = scale, .output = expected.view()}, {});
          Matrix got(dtype, rows, cols);
          te::dequantize({.input = codes.view(), .scale_inv = scale, .output = got.view()},
                         {.num_threads = 2});
          EXPECT_TRUE(same_bytes(got, expected)) << rows << " x " << cols;
        }
      }
    }
  }
}

TEST(Dequantize, EqualsTheReferenceForLargeOutputs) {
  Matrix codes(DType::kFloat8E4M3, 1, (int64_t{16} << 20) + 5);
  fill_random_bytes(codes, 8);
  Matrix expected(DType::kBFloat16, 1, codes.numel());
  te::reference::dequantize({.input = codes.view(), .output = expected.view()}, {});
  Matrix got(DType::kBFloat16, 1, codes.numel());
  te::dequantize({.input = codes.view(), .output = got.view()}, {.num_threads = 2});
  EXPECT_TRUE(same_bytes(got, expected));
}

TEST(Dequantize, UndoesQuantizeOfExactValues) {
  Matrix codes(DType::kFloat8E5M2, 1, 124);  // all finite ones, positive
  for (int i = 0; i < 124; ++i) {
    codes.data<uint8_t>()[i] = static_cast<uint8_t>(i);
  }
  Matrix values(DType::kFloat16, 1, 124);
  te::dequantize({.input = codes.view(), .output = values.view()}, {});
  Matrix again(DType::kFloat8E5M2, 1, 124);
  QuantizeArgs args{.input = values.view(), .output = {}};
  args.output.data = again.view();
  te::quantize(args, {});
  EXPECT_TRUE(same_bytes(again, codes));
}

TEST(TransposeBytes, MovesEveryElement) {
  for (const auto& [rows, cols] : kShapes) {
    for (const int threads : {1, 2}) {
      Matrix input(DType::kByte, rows, cols);
      fill_random_bytes(input, 6);
      Matrix output(DType::kByte, cols, rows);
      te::transpose_bytes({.input = input.view(), .output = output.view()},
                          {.num_threads = threads});
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
          ASSERT_EQ(output.data<uint8_t>()[col * rows + row],
                    input.data<uint8_t>()[row * cols + col]);
        }
      }
    }
  }
}

TEST(ComputeAmax, OverwritesWithTheLargestMagnitude) {
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : kInputs) {
      for (const int threads : {1, 2}) {
        Matrix input(dtype, rows, cols);
        fill_random(input, 12);
        double expected = 0.0;
        for (int64_t i = 0; i < input.numel(); ++i) {
          const double value = te::load_float(input.view(), i);
          expected = std::fmax(expected, std::abs(value));
        }
        float amax = 1e30F;
        te::compute_amax({.input = input.view(), .amax = &amax}, {.num_threads = threads});
        EXPECT_EQ(static_cast<double>(amax), expected);
      }
    }
  }
}

TEST(ComputeScaleFromAmax, WritesScaleAndItsInverse) {
  const float amax = 3.0F;
  float scale = 0.0F;
  float scale_inv = 0.0F;
  te::compute_scale_from_amax({.amax = &amax, .scale = &scale, .scale_inv = &scale_inv}, {});
  EXPECT_EQ(scale, 448.0F / 3.0F);
  EXPECT_EQ(scale_inv, 1.0F / scale);
  te::compute_scale_from_amax({.amax = &amax, .scale = &scale, .power_of_two = true}, {});
  EXPECT_EQ(scale, 128.0F);
  te::compute_scale_from_amax(
      {.amax = &amax, .scale = &scale, .fp8_max = 57344.0F, .epsilon = 8.0F}, {});
  EXPECT_EQ(scale, 7168.0F);
}

// Refusals: each names the op and the argument, and leaves the outputs alone.

struct QuantizeProblem {
  Matrix input{DType::kBFloat16, 4, 6};
  Matrix data{DType::kFloat8E4M3, 4, 6};
  Matrix data_transpose{DType::kFloat8E4M3, 6, 4};
  QuantizeArgs args;

  QuantizeProblem() {
    args.input = input.view();
    args.output.data = data.view();
    args.output.data_transpose = data_transpose.view();
  }
};

template <typename Error>
void expect_quantize_error(const char* text, const std::function<void(QuantizeArgs&)>& spoil) {
  QuantizeProblem problem;
  std::memset(problem.data.data<void>(), 0x77, problem.data.size_bytes());
  Matrix before = problem.data;
  spoil(problem.args);
  expect_error<Error>([&] { te::quantize(problem.args, {}); }, {"quantize", text});
  EXPECT_TRUE(same_bytes(problem.data, before));
}

TEST(QuantizeRefuses, WrongTypes) {
  expect_quantize_error<te::TypeError>("input has dtype int32",
                                       [](auto& args) { args.input.dtype = DType::kInt32; });
  expect_quantize_error<te::TypeError>("data has dtype byte",
                                       [](auto& args) { args.output.data.dtype = DType::kByte; });
  expect_quantize_error<te::TypeError>("data_transpose float8_e5m2", [](auto& args) {
    args.output.data_transpose.dtype = DType::kFloat8E5M2;
  });
}

TEST(QuantizeRefuses, WrongShapes) {
  expect_quantize_error<te::ValueError>("data has shape [4, 5]",
                                        [](auto& args) { args.output.data.cols = 5; });
  expect_quantize_error<te::ValueError>("data_transpose has shape [4, 6]", [](auto& args) {
    args.output.data_transpose.rows = 4;
    args.output.data_transpose.cols = 6;
  });
  expect_quantize_error<te::ValueError>("input has shape [-1, 6]",
                                        [](auto& args) { args.input.rows = -1; });
}

TEST(QuantizeRefuses, MissingData) {
  expect_quantize_error<te::ValueError>("input has no data",
                                        [](auto& args) { args.input.data = nullptr; });
  expect_quantize_error<te::ValueError>("none of data", [](auto& args) { args.output = {}; });
  expect_quantize_error<te::ValueError>("quantized data has no data", [](auto& args) {
    args.output.data.data = nullptr;
    args.output.data.framework_tensor = &args;  // wanted, but without memory
  });
}

TEST(QuantizeRefuses, CopiesWithOneScalePerBlock) {
  expect_quantize_error<te::ValueError>("one scale per block", [](auto& args) {
    args.output.blocks.rowwise.data = args.output.data;
  });
}

TEST(QuantizeRefuses, AnotherDeviceAndListsEveryCandidate) {
  QuantizeProblem problem;
  expect_error<te::NotImplementedError>(
      [&] { te::quantize(problem.args, {.device = te::DeviceType::kCUDA}); },
      {"quantize", "cpu: ", "cuda: this build has no CUDA backend", "reference: "});
}

TEST(DequantizeRefuses, WrongTypesShapesAndMissingData) {
  Matrix codes(DType::kFloat8E4M3, 2, 3);
  Matrix output(DType::kFloat32, 2, 3);
  te::DequantizeArgs good{.input = codes.view(), .output = output.view()};
  auto args = good;
  args.input.dtype = DType::kByte;
  expect_error<te::TypeError>([&] { te::dequantize(args, {}); }, {"dequantize", "input", "byte"});
  args = good;
  args.output.dtype = DType::kInt16;
  expect_error<te::TypeError>([&] { te::dequantize(args, {}); }, {"dequantize", "output", "int16"});
  args = good;
  args.output.rows = 3;
  expect_error<te::ValueError>([&] { te::dequantize(args, {}); }, {"output has shape [3, 3]"});
  args = good;
  args.output.data = nullptr;
  expect_error<te::ValueError>([&] { te::dequantize(args, {}); }, {"output has no data"});
}

TEST(TransposeBytesRefuses, WrongTypesAndShapes) {
  Matrix input(DType::kByte, 2, 3);
  Matrix output(DType::kByte, 3, 2);
  te::TransposeArgs good{.input = input.view(), .output = output.view()};
  auto args = good;
  args.input.dtype = DType::kFloat16;
  expect_error<te::TypeError>([&] { te::transpose_bytes(args, {}); }, {"input", "float16"});
  args = good;
  args.output.dtype = DType::kFloat32;
  expect_error<te::TypeError>([&] { te::transpose_bytes(args, {}); }, {"output", "float32"});
  args = good;
  args.output = input.view();
  expect_error<te::ValueError>([&] { te::transpose_bytes(args, {}); }, {"output has shape [2, 3]"});
}

TEST(ComputeAmaxRefuses, WrongTypeAndMissingResult) {
  Matrix input(DType::kFloat32, 1, 2);
  float amax = 0.0F;
  expect_error<te::ValueError>([&] { te::compute_amax({.input = input.view()}, {}); },
                               {"compute_amax", "amax is null"});
  TensorView bytes = input.view();
  bytes.dtype = DType::kByte;
  expect_error<te::TypeError>([&] { te::compute_amax({.input = bytes, .amax = &amax}, {}); },
                              {"compute_amax", "input has dtype byte"});
}

TEST(ComputeScaleFromAmaxRefuses, BadNumbersAndMissingPointers) {
  const float amax = 1.0F;
  float scale = 9.0F;
  const auto run = [&](float fp8_max, float epsilon) {
    te::compute_scale_from_amax(
        {.amax = &amax, .scale = &scale, .fp8_max = fp8_max, .epsilon = epsilon}, {});
  };
  expect_error<te::ValueError>([&] { run(0.0F, 0.0F); }, {"fp8_max is 0"});
  expect_error<te::ValueError>([&] { run(HUGE_VALF, 0.0F); }, {"fp8_max is inf"});
  expect_error<te::ValueError>([&] { run(448.0F, -1.0F); }, {"epsilon is -1"});
  expect_error<te::ValueError>([&] { run(448.0F, std::nanf("")); }, {"epsilon is nan"});
  expect_error<te::ValueError>([&] { te::compute_scale_from_amax({.scale = &scale}, {}); },
                               {"amax is null"});
  expect_error<te::ValueError>([&] { te::compute_scale_from_amax({.amax = &amax}, {}); },
                               {"scale is null"});
  EXPECT_EQ(scale, 9.0F);
}

}  // namespace
