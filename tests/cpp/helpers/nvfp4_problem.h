// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// NVFP4 problems for tests: options, owning outputs with padded and guarded scales, and their
// comparison.
#pragma once

#include <gtest/gtest.h>
#include <transformer_engine/block_scaling.h>
#include <transformer_engine/error.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "helpers/matrix.h"
#include "numerics/bits.h"
#include "numerics/hadamard.h"

namespace transformer_engine::testing {

struct Nvfp4Case {
  bool has_rowwise = true, has_columnwise = true;
  bool has_square_tiles = false, has_hadamard = false, is_stochastic = false;
  bool is_row_scaled = false;  // of the rowwise copy
  FourOverSix four_over_six = FourOverSix::kNone;
  float e4m3_max = 448.0F;
  uint16_t signs = kHadamardSigns;
  uint64_t seed = 0x123456789ABCDEF0;

  std::string text() const {
    return concat(has_rowwise ? "row " : "", has_columnwise ? "col " : "",
                  has_square_tiles ? "tiles " : "", has_hadamard ? "hadamard " : "",
                  is_stochastic ? "stochastic " : "", is_row_scaled ? "row-scaled " : "", "4over6 ",
                  static_cast<int>(four_over_six), " max ", e4m3_max);
  }
};

// Every combination of options that is accepted.
inline std::vector<Nvfp4Case> all_nvfp4_cases() {
  std::vector<Nvfp4Case> cases;
  for (int choice = 0; choice < 3 * 32; ++choice) {
    Nvfp4Case c;
    const int usage = choice / 32;
    c.has_rowwise = usage != 1;
    c.has_columnwise = usage != 2;
    c.has_square_tiles = (choice & 1) != 0;
    c.has_hadamard = (choice & 2) != 0;
    c.is_stochastic = (choice & 4) != 0;
    c.e4m3_max = (choice & 8) != 0 ? 256.0F : 448.0F;
    c.is_row_scaled = (choice & 16) != 0;
    const bool is_plain = !c.has_hadamard && !c.is_stochastic;
    if (c.is_row_scaled && (!is_plain || c.has_square_tiles || !c.has_rowwise)) {
      continue;
    }
    cases.push_back(c);
    for (const auto mode : {FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
      if (is_plain) {
        c.four_over_six = mode;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

inline int64_t nvfp4_blocks(int64_t cols) { return (cols + 15) / 16; }

// Memory of one copy, filled so that unwritten bytes show. Each row of scales has padding.
class Nvfp4Copy {
 public:
  Nvfp4Copy(int64_t rows, int64_t cols, bool is_row_scaled)
      : rows_(rows),
        cols_(cols),
        is_row_scaled_(is_row_scaled),
        data(DType::kByte, rows, nvfp4_blocks(cols) * 8),
        scales(DType::kByte, rows, nvfp4_blocks(cols) + 3),
        amax(is_row_scaled ? rows : 1, std::numeric_limits<float>::quiet_NaN()) {
    std::memset(data.data<void>(), 0x5A, data.size_bytes());
    std::memset(scales.data<void>(), 0x5B, scales.size_bytes());
  }

  BlockScaledMatrix view(float e4m3_max) {
    BlockScaledMatrix matrix;
    matrix.data = {
        .data = data.data<void>(), .dtype = DType::kFloat4E2M1, .rows = rows_, .cols = cols_};
    matrix.scales.data = scales.data<void>();
    matrix.scales.dtype = DType::kFloat8E4M3;
    matrix.scales.block_cols = 16;
    matrix.scales.row_stride = scales.cols();
    matrix.scales.col_stride = 1;
    matrix.scales.amax = amax.data();
    matrix.scales.is_row_scaled = is_row_scaled_;
    matrix.scales.e4m3_max = e4m3_max;
    return matrix;
  }

  uint8_t code(int64_t row, int64_t col) {
    const uint8_t byte = data.data<uint8_t>()[row * data.cols() + col / 2];
    return col % 2 == 0 ? byte & 0x0F : byte >> 4;
  }
  uint8_t scale(int64_t row, int64_t col) {
    return scales.data<uint8_t>()[row * scales.cols() + col / 16];
  }

 private:
  int64_t rows_, cols_;
  bool is_row_scaled_;

 public:
  Matrix data, scales;
  std::vector<float> amax;
};

// Both copies of one quantization.
struct Nvfp4Outputs {
  Nvfp4Copy rowwise, columnwise;

  Nvfp4Outputs(const Matrix& input, const Nvfp4Case& c)
      : rowwise(input.rows(), input.cols(), c.is_row_scaled),
        columnwise(input.cols(), input.rows(), false) {}

  QuantizeNvfp4Args args(Matrix& input, const Nvfp4Case& c) {
    QuantizeNvfp4Args args;
    args.input = input.view();
    args.rowwise = c.has_rowwise ? rowwise.view(c.e4m3_max) : BlockScaledMatrix{};
    args.columnwise = c.has_columnwise ? columnwise.view(c.e4m3_max) : BlockScaledMatrix{};
    args.has_square_tiles = c.has_square_tiles;
    args.has_hadamard = c.has_hadamard;
    args.hadamard_signs = c.signs;
    args.is_stochastic = c.is_stochastic;
    args.seed = c.seed;
    args.four_over_six = c.four_over_six;
    return args;
  }
};

inline void expect_same_copy(Nvfp4Copy& got, Nvfp4Copy& expected, const std::string& what) {
  for (size_t i = 0; i < expected.amax.size(); ++i) {  // bits: unwritten ones are NaN
    EXPECT_EQ(numerics::bits_of_float(got.amax[i]), numerics::bits_of_float(expected.amax[i]))
        << what << ": amax " << i << " is " << got.amax[i] << ", expected " << expected.amax[i];
  }
  EXPECT_TRUE(same_bytes(got.scales, expected.scales)) << what << ": scales";
  EXPECT_TRUE(same_bytes(got.data, expected.data)) << what << ": data";
}
inline void expect_same_outputs(Nvfp4Outputs& got, Nvfp4Outputs& expected,
                                const std::string& what) {
  expect_same_copy(got.rowwise, expected.rowwise, what + " rowwise");
  expect_same_copy(got.columnwise, expected.columnwise, what + " columnwise");
}

}  // namespace transformer_engine::testing
