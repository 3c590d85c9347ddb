// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/cast.cu against reference/cast.h, bit for bit.
#include <gtest/gtest.h>
#include <transformer_engine/cast.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device_mirror.h"
#include "helpers/closeness.h"
#include "helpers/formats.h"
#include "reference/cast.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::DeviceMirror;
using te::testing::fill_random;
using te::testing::fill_random_bytes;
using te::testing::is_too_large;
using te::testing::kHighPrecision;
using te::testing::kOnDevice;
using te::testing::Matrix;
using te::testing::same_bytes;

constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
// Empty, one row, one column, odd, prime, whole tiles, tiles with a rest, rows that allow vectors.
constexpr int64_t kShapes[][2] = {{0, 0},   {0, 7},   {5, 0},   {1, 1},    {1, 300},  {130, 1},
                                  {17, 31}, {64, 64}, {63, 65}, {128, 80}, {16, 208}, {3, 5000}};

struct Wanted {
  bool data, data_transpose, amax, scale_inv;
};
constexpr Wanted kWanted[] = {{true, false, false, false},
                              {true, false, true, true},
                              {false, true, true, true},
                              {true, true, true, true},
                              {false, false, true, false}};

struct Outputs {
  Matrix data, data_transpose;
  float amax = 0.25F;
  float scale_inv = -7.0F;
  float scale = 0.7F;

  Outputs(const Matrix& input, DType format)
      : data(format, input.rows(), input.cols()),
        data_transpose(format, input.cols(), input.rows()) {
    std::memset(data.data<void>(), 0x55, data.size_bytes());
    std::memset(data_transpose.data<void>(), 0x55, data_transpose.size_bytes());
  }
  te::QuantizedOutput on_host(const Wanted& wanted) {
    return {.data = wanted.data ? data.view() : te::TensorView{},
            .data_transpose = wanted.data_transpose ? data_transpose.view() : te::TensorView{},
            .scale = &scale,
            .scale_inv = wanted.scale_inv ? &scale_inv : nullptr,
            .amax = wanted.amax ? &amax : nullptr};
  }
  te::QuantizedOutput on_device(DeviceMirror& mirror, const Wanted& wanted) {
    return {.data = mirror.view_if(wanted.data, data),
            .data_transpose = mirror.view_if(wanted.data_transpose, data_transpose),
            .scale = mirror.pointer(&scale, 1),
            .scale_inv = wanted.scale_inv ? mirror.pointer(&scale_inv, 1) : nullptr,
            .amax = wanted.amax ? mirror.pointer(&amax, 1) : nullptr};
  }
};

void expect_same(Outputs& got, Outputs& expected, const std::string& what) {
  EXPECT_TRUE(same_bytes(got.data, expected.data)) << what;
  EXPECT_TRUE(same_bytes(got.data_transpose, expected.data_transpose)) << what;
  EXPECT_EQ(got.amax, expected.amax) << what;
  EXPECT_EQ(got.scale_inv, expected.scale_inv) << what;
}

TEST(CudaQuantize, EqualsTheReferenceForAllOutputsAndShapes) {
  for (const auto& [rows, cols] : kShapes) {
    if (is_too_large(rows * cols)) {
      continue;
    }
    for (const DType dtype : kHighPrecision) {
      Matrix input(dtype, rows, cols);
      fill_random(input, 1);
      for (const Wanted& wanted : kWanted) {
        for (const DType format : kFormats) {
          Outputs expected(input, format);
          te::reference::quantize({.input = input.view(), .output = expected.on_host(wanted)}, {});
          Outputs got(input, format);
          DeviceMirror mirror;
          te::quantize({.input = mirror.view(input), .output = got.on_device(mirror, wanted)},
                       kOnDevice);
          mirror.download();
          expect_same(got, expected,
                      te::concat(te::dtype_name(dtype), " ", rows, " x ", cols, " ",
                                 te::dtype_name(format)));
        }
      }
    }
  }
}

// Every BF16 number, infinities, NaN and denormals among them.
TEST(CudaQuantize, EqualsTheReferenceForEveryBf16Input) {
  Matrix input(DType::kBFloat16, 256, 256);
  for (int i = 0; i < 65536; ++i) {
    input.data<uint16_t>()[i] = static_cast<uint16_t>(i);
  }
  for (const DType format : kFormats) {
    for (const float scale : {1.0F, 3.0F, 0x1p-20F}) {
      if (te::testing::kIsSlowDevice && scale != 3.0F) {
        continue;
      }
      Outputs expected(input, format);
      Outputs got(input, format);
      got.scale = expected.scale = scale;
      te::reference::quantize({.input = input.view(), .output = expected.on_host(kWanted[3])}, {});
      DeviceMirror mirror;
      te::quantize({.input = mirror.view(input), .output = got.on_device(mirror, kWanted[3])},
                   kOnDevice);
      mirror.download();
      expect_same(got, expected, te::concat(te::dtype_name(format), " scale ", scale));
    }
  }
}

TEST(CudaQuantize, NoopFlagLeavesEverythingUnwritten) {
  Matrix input(DType::kBFloat16, 70, 72);
  fill_random(input, 2);
  for (const Wanted& wanted : {kWanted[1], kWanted[3]}) {
    for (float flag : {1.0F, -1.0F, 0.0F}) {
      Outputs expected(input, DType::kFloat8E4M3);
      Outputs got(input, DType::kFloat8E4M3);
      te::reference::quantize(
          {.input = input.view(), .output = expected.on_host(wanted), .noop = &flag}, {});
      DeviceMirror mirror;
      te::quantize({.input = mirror.view(input),
                    .output = got.on_device(mirror, wanted),
                    .noop = mirror.pointer(&flag, 1)},
                   kOnDevice);
      mirror.download();
      expect_same(got, expected, te::concat("noop ", flag));
    }
  }
}

TEST(CudaQuantize, AmaxThatIsNaNIsReplaced) {
  Matrix input(DType::kFloat32, 3, 5);
  fill_random(input, 3);
  Outputs expected(input, DType::kFloat8E4M3);
  Outputs got(input, DType::kFloat8E4M3);
  got.amax = expected.amax = std::nanf("");
  te::reference::quantize({.input = input.view(), .output = expected.on_host(kWanted[4])}, {});
  DeviceMirror mirror;
  te::quantize({.input = mirror.view(input), .output = got.on_device(mirror, kWanted[4])},
               kOnDevice);
  mirror.download();
  expect_same(got, expected, "NaN");
}

// Of every kind, signalling ones too, in rows that allow vectors and in others.
TEST(CudaQuantize, AmaxSkipsNaN) {
  const std::vector<float> nans = te::testing::nan_cases();
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{4, 64}, {3, 37}}) {
    Matrix input(DType::kFloat32, rows, cols);
    fill_random(input, 5);
    for (int64_t i = 0; i < input.numel(); ++i) {
      if (i % 4 != 1) {
        const float nan = nans[static_cast<size_t>(i) % nans.size()];
        std::memcpy(input.data<float>() + i, &nan, sizeof nan);
      }
    }
    for (const Wanted& wanted : kWanted) {
      Outputs expected(input, DType::kFloat8E4M3);
      Outputs got(input, DType::kFloat8E4M3);
      got.amax = expected.amax = 0.0F;
      te::reference::quantize({.input = input.view(), .output = expected.on_host(wanted)}, {});
      EXPECT_FALSE(std::isnan(expected.amax));
      DeviceMirror mirror;
      te::quantize({.input = mirror.view(input), .output = got.on_device(mirror, wanted)},
                   kOnDevice);
      mirror.download();
      expect_same(got, expected, te::concat(rows, " x ", cols));
    }
  }
}

TEST(CudaDequantize, EqualsTheReferenceForAllCodes) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 256}, {7, 37}, {64, 64}}) {
    for (const DType format : kFormats) {
      Matrix codes(format, rows, cols);
      for (int64_t i = 0; i < codes.numel(); ++i) {
        codes.data<uint8_t>()[i] = static_cast<uint8_t>(i);
      }
      for (const DType dtype : kHighPrecision) {
        for (const bool has_scale : {true, false}) {
          float scale_inv = 0.3F;
          Matrix expected(dtype, rows, cols);
          Matrix got(dtype, rows, cols);
          te::reference::dequantize({.input = codes.view(),
                                     .scale_inv = has_scale ? &scale_inv : nullptr,
                                     .output = expected.view()},
                                    {});
          DeviceMirror mirror;
          te::dequantize({.input = mirror.view(codes),
                          .scale_inv = has_scale ? mirror.pointer(&scale_inv, 1) : nullptr,
                          .output = mirror.view(got)},
                         kOnDevice);
          mirror.download();
          for (int64_t i = 0; i < got.numel(); ++i) {  // payloads of NaN are not kept
            ASSERT_TRUE(got.get(i) == expected.get(i) ||
                        (std::isnan(got.get(i)) && std::isnan(expected.get(i))))
                << te::dtype_name(format) << " code " << i % 256;
          }
        }
      }
    }
  }
}

TEST(CudaTranspose, MovesEveryByte) {
  for (const auto& [rows, cols] : kShapes) {
    Matrix input(DType::kByte, rows, cols);
    fill_random_bytes(input, 4);
    Matrix expected(DType::kByte, cols, rows);
    Matrix got(DType::kByte, cols, rows);
    te::reference::transpose_bytes({.input = input.view(), .output = expected.view()}, {});
    DeviceMirror mirror;
    te::transpose_bytes({.input = mirror.view(input), .output = mirror.view(got)}, kOnDevice);
    mirror.download();
    EXPECT_TRUE(same_bytes(got, expected)) << rows << " x " << cols;
  }
}

TEST(CudaAmax, SkipsNaNAndOverwrites) {
  for (const DType dtype : kHighPrecision) {
    for (const auto& [rows, cols] : kShapes) {
      Matrix input(dtype, rows, cols);
      fill_random(input, 5);
      if (input.numel() > 2) {
        input.set(1, std::nanf(""));
      }
      float expected = 0.0F;
      te::reference::compute_amax({.input = input.view(), .amax = &expected}, {});
      float got = 1e30F;
      DeviceMirror mirror;
      te::compute_amax({.input = mirror.view(input), .amax = mirror.pointer(&got, 1)}, kOnDevice);
      mirror.download();
      EXPECT_EQ(got, expected) << te::dtype_name(dtype) << " " << rows << " x " << cols;
    }
  }
}

TEST(CudaScaleFromAmax, EqualsTheReference) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float amax : {0.0F, 1.0F, 3.7F, 448.0F, 1e-40F, 1e38F, infinity, std::nanf("")}) {
    for (const float epsilon : {0.0F, 0.5F}) {
      for (const bool power_of_two : {false, true}) {
        float in = amax;
        float expected[2];
        float got[2] = {-1.0F, -1.0F};
        te::reference::compute_scale_from_amax({.amax = &in,
                                                .scale = &expected[0],
                                                .scale_inv = &expected[1],
                                                .epsilon = epsilon,
                                                .power_of_two = power_of_two},
                                               {});
        DeviceMirror mirror;
        float* device = mirror.pointer(got, 2);
        te::compute_scale_from_amax({.amax = mirror.pointer(&in, 1),
                                     .scale = device,
                                     .scale_inv = device + 1,
                                     .epsilon = epsilon,
                                     .power_of_two = power_of_two},
                                    kOnDevice);
        mirror.download();
        EXPECT_EQ(got[0], expected[0]) << amax;
        EXPECT_EQ(got[1], expected[1]) << amax;
      }
    }
  }
}

TEST(CudaDelayedScaling, EqualsTheReferenceForAllModulesAtOnce) {
  for (const int64_t length : {1, 2, 5}) {
    for (const int64_t columns : {0, 1, 300}) {
      for (const bool has_reduced : {false, true}) {
        for (const auto algo : {te::AmaxComputeAlgo::kMax, te::AmaxComputeAlgo::kMostRecent}) {
          Matrix history(DType::kFloat32, length, columns);
          Matrix reduced(DType::kFloat32, 1, columns);
          Matrix scale(DType::kFloat32, 1, columns);
          fill_random(history, 6);
          fill_random(reduced, 7);
          for (int64_t i = 0; i < history.numel(); ++i) {
            history.set(i, i % 7 == 0    ? 0.0F
                           : i % 11 == 0 ? std::nanf("")
                           : i % 13 == 0 ? std::numeric_limits<float>::infinity()
                                         : std::abs(static_cast<float>(history.get(i))));
          }
          for (int64_t i = 0; i < columns; ++i) {
            reduced.set(i, i % 3 == 0 ? 0.0F : std::abs(static_cast<float>(reduced.get(i))));
            scale.set(i, 2.0F + static_cast<float>(i));
          }
          Matrix expected_history = history;
          Matrix expected_scale = scale;
          te::reference::delayed_scaling_update(
              {.amax_history = expected_history.view(),
               .reduced_amax = has_reduced ? reduced.data<float>() : nullptr,
               .scale = expected_scale.data<float>(),
               .margin = 1.0F,
               .algo = algo},
              {});
          DeviceMirror mirror;
          te::delayed_scaling_update(
              {.amax_history = mirror.view(history),
               .reduced_amax =
                   has_reduced ? static_cast<float*>(mirror.view(reduced).data) : nullptr,
               .scale = static_cast<float*>(mirror.view(scale).data),
               .margin = 1.0F,
               .algo = algo},
              kOnDevice);
          mirror.download();
          EXPECT_TRUE(same_bytes(history, expected_history)) << length << " x " << columns;
          EXPECT_TRUE(same_bytes(scale, expected_scale)) << length << " x " << columns;
        }
      }
    }
  }
}

}  // namespace
