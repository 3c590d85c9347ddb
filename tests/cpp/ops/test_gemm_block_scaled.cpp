// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// gemm() on operands with one scale per block, in every pairing: each implementation on every
// instruction set of this machine, against FP64.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/framework.h>

#include "helpers/errors.h"
#include "helpers/gemm_block_operand.h"
#include "helpers/gemm_implementations.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::BlockProblem;
using te::testing::expect_error;
using te::testing::expect_results_match_fp64;
using te::testing::for_each_result;
using te::testing::GemmCase;
using te::testing::GemmMatrix;
using te::testing::kOperandKinds;
using te::testing::OperandKind;
using te::testing::ScaleKind;
using te::testing::threads;

constexpr DType kHighPrecision[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

GemmCase shape(int64_t m, int64_t n, int64_t k) {
  GemmCase spec;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  return spec;
}

const OperandKind& kind_named(const std::string& name) {
  for (const OperandKind& kind : kOperandKinds) {
    if (kind.name == name) {
      return kind;
    }
  }
  throw std::invalid_argument(name);
}

// Every pairing that has a block-scaled operand (the others: test_gemm.cpp), or two kinds of types.
template <typename Body>
void for_each_pairing(const Body& body) {
  for (const OperandKind& a : kOperandKinds) {
    for (const OperandKind& b : kOperandKinds) {
      if (te::testing::is_pair(a, b) &&
          (a.dtype != b.dtype || has_block_scales(a) || has_block_scales(b))) {
        body(a, b);
      }
    }
  }
}

template <typename Body>
void for_each_layout(GemmCase spec, const Body& body) {
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      spec.a_transposed = a_transposed;
      spec.b_transposed = b_transposed;
      body(spec);
    }
  }
}

// No sum, or bias, or bias with GELU, or an addition to d; and the result's type, in turn.
GemmCase with_epilogue(GemmCase spec, unsigned choice) {
  spec.d_dtype = kHighPrecision[choice % 3];
  spec.bias_dtype = kHighPrecision[choice / 3 % 3];
  spec.has_bias = choice % 4 == 1 || choice % 4 == 2;
  spec.has_gelu = spec.has_pre = choice % 4 == 2;
  spec.accumulate = choice % 4 == 3;
  return spec;
}

TEST(GemmBlockScaled, EveryPairingAndLayoutMatchesFp64) {
  const GemmCase shapes[] = {shape(17, 33, 130), shape(5, 7, 33), shape(3, 37, 257),
                             shape(15, 34, 127), shape(1, 1, 1)};
  unsigned seed = 0;
  for_each_pairing([&](const OperandKind& a, const OperandKind& b) {
    for_each_layout(shapes[seed / 4 % 5], [&](const GemmCase& spec) {
      ++seed;
      BlockProblem problem(with_epilogue(spec, seed), a, b, seed);
      expect_results_match_fp64(problem, 1);
    });
  });
}

TEST(GemmBlockScaled, EveryEpilogueAndTypeOfResultMatchesFp64) {
  unsigned seed = 5000;
  for (const OperandKind& kind : kOperandKinds) {
    for (unsigned choice = 0; choice < 36; ++choice) {
      BlockProblem problem(with_epilogue(shape(6, 19, 66), choice), kind, kind, ++seed);
      expect_results_match_fp64(problem, 1);
    }
  }
}

TEST(GemmBlockScaled, EdgesOfBlocksAndTilesMatchFp64) {
  unsigned seed = 10000;
  for (const OperandKind& kind : kOperandKinds) {
    for (const int64_t k : {1, 2, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129}) {
      const int64_t m = 1 + seed % 31;
      const int64_t n = k == 128 ? 129 : 1 + seed % 67;
      for_each_layout(shape(m, n, k), [&](const GemmCase& spec) {
        ++seed;
        BlockProblem problem(with_epilogue(spec, seed), kind, kind, seed);
        expect_results_match_fp64(problem, 1 + static_cast<int>(seed % 2));
      });
    }
  }
}

// Whole numbers times powers of two: every sum is exact in FP32, so every order of summation gives
// its bits. Larger than one block of the implementation in every direction.
TEST(GemmBlockScaled, WholeNumbersAreExactAcrossBlocksAndParts) {
  unsigned seed = 20000;
  for (const OperandKind& kind : kOperandKinds) {
    if (!has_block_scales(kind)) {
      continue;
    }
    for (const GemmCase& size : {shape(15, 1061, 530), shape(401, 35, 270)}) {
      GemmCase spec = size;
      spec.a_transposed = ++seed % 2 == 0;
      spec.b_transposed = seed / 2 % 2 == 0;
      BlockProblem problem(spec, kind, kind, seed);
      std::mt19937 random(seed);
      for (auto* operand : {&problem.a, &problem.b}) {
        operand->fill([&] { return static_cast<int>(random() % 7) - 3; });
        operand->fill_scales([&] { return random() % 2 == 0 ? 1.0 : 2.0; });
        operand->set_amax(6.0F * kind.e4m3_max);
      }
      const std::vector<double> a = problem.a.values();
      const std::vector<double> b = problem.b.values();
      GemmMatrix expected(DType::kFloat32, spec.m, spec.n);
      const double alpha = problem.a.alpha() * problem.b.alpha();
      for (int64_t row = 0; row < spec.m; ++row) {
        for (int64_t col = 0; col < spec.n; ++col) {
          double sum = 0.0;
          for (int64_t i = 0; i < spec.k; ++i) {
            sum +=
                a[static_cast<size_t>(row * spec.k + i)] * b[static_cast<size_t>(col * spec.k + i)];
          }
          expected.set(row, col, static_cast<float>(sum * alpha));
        }
      }
      for_each_result(problem, threads(2), [&](const GemmMatrix& d, const GemmMatrix&) {
        EXPECT_EQ(d.bytes, expected.bytes);
      });
    }
  }
}

// `rows` rows (k = 1) of A or of B, times a power of two: each element comes out alone.
class SingleElements {
 public:
  SingleElements(const OperandKind& kind, int64_t rows, bool is_transposed, bool is_b)
      : rows_(rows),
        is_transposed_(is_transposed),
        is_b_(is_b),
        problem_(spec(), is_b ? one() : kind, is_b ? kind : one(), 1) {
    elements().set_amax(6.0F * kind.e4m3_max);
  }
  te::testing::BlockOperand& elements() { return is_b_ ? problem_.b : problem_.a; }
  int64_t stored_row(int64_t row) const { return is_transposed_ ? 0 : row; }
  int64_t stored_col(int64_t row) const { return is_transposed_ ? row : 0; }

  // exact(row) in FP64. Beyond FP32's range an element is infinite, also where its product would be
  // in range again; below 2^-126 it may count as 0, and so may its product.
  template <typename Exact>
  void expect_exact(const Exact& exact) {
    for (const float factor : {1.0F, 0x1p-20F}) {
      (is_b_ ? problem_.a : problem_.b).fill([factor] { return factor; });
      for_each_result(problem_, threads(1), [&](const GemmMatrix& d, const GemmMatrix&) {
        for (int64_t row = 0; row < rows_; ++row) {
          const float actual = is_b_ ? d.get(0, row) : d.get(row, 0);
          const float element = static_cast<float>(exact(row));
          const float expected = element * factor;
          const bool may_be_zero =
              std::abs(element) * factor < 0x1p-126F || std::abs(element) < 0x1p-126F;
          EXPECT_TRUE(std::isnan(expected) ? std::isnan(actual)
                                           : actual == expected || (may_be_zero && actual == 0.0F))
              << "row " << row << (is_b_ ? " of b: " : " of a: ") << actual << ", expected "
              << expected;
        }
      });
    }
  }

 private:
  static const OperandKind& one() { return kind_named("bfloat16"); }
  GemmCase spec() const {
    GemmCase spec = is_b_ ? shape(1, rows_, 1) : shape(rows_, 1, 1);
    (is_b_ ? spec.b_transposed : spec.a_transposed) = is_transposed_;
    return spec;
  }

  int64_t rows_;
  bool is_transposed_, is_b_;
  BlockProblem problem_;
};

TEST(GemmBlockScaled, EveryFp8CodeUnderEveryPowerOfTwoIsExact) {
  constexpr int64_t kScales = 8;  // at once
  for (const char* name :
       {"e4m3 mx 1x32", "e5m2 mx 1x32", "e4m3 mx 32x1", "e5m2 mx 32x1", "e4m3 1x128"}) {
    const OperandKind& kind = kind_named(name);
    const te::testing::Format& format =
        kind.dtype == DType::kFloat8E4M3 ? te::testing::kE4M3 : te::testing::kE5M2;
    const bool is_column = kind.block_cols == 1;  // stored [1, rows]: a scale for each, too
    for (int64_t choice = 0; choice < 2 * 256; choice += kScales) {
      const int64_t first_scale = choice % 256;
      SingleElements single(kind, kScales * 256, is_column, choice >= 256);
      const auto scale_of = [&](int64_t row) {
        const auto code = static_cast<int>(first_scale + row / 256);
        return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127);
      };
      for (int64_t row = 0; row < kScales * 256; ++row) {
        const int64_t r = single.stored_row(row);
        const int64_t c = single.stored_col(row);
        single.elements().code(r, c) = static_cast<uint8_t>(row % 256);
        if (kind.scales == ScaleKind::kPowerOfTwo) {
          single.elements().set_scale(r, c, scale_of(row));
        } else {
          single.elements().set_scale_code(r, c, static_cast<uint8_t>(first_scale + row / 256));
        }
      }
      single.expect_exact([&](int64_t row) {
        return format.value(static_cast<uint32_t>(row % 256)) * scale_of(row);
      });
    }
  }
}

TEST(GemmBlockScaled, EveryE2M1CodeUnderEveryE4M3ScaleIsExact) {
  for (const bool is_transposed : {false, true}) {
    for (const bool is_b : {false, true}) {
      constexpr int64_t kRows = 16 * 256;
      SingleElements single(kind_named("nvfp4"), kRows, is_transposed, is_b);
      const auto code_of = [](int64_t row) {
        return te::testing::kE2M1.value(static_cast<uint32_t>(row % 16));
      };
      for (int64_t row = 0; row < kRows; ++row) {
        const int64_t r = single.stored_row(row);
        const int64_t c = single.stored_col(row);
        single.elements().set(r, c, code_of(row));
        // Stored [1, rows], blocks of 16 lie along the rows.
        single.elements().set_scale_code(r, c, static_cast<uint8_t>(row / 16));
      }
      single.expect_exact([&](int64_t row) {
        return code_of(row) * te::testing::kE4M3.value(static_cast<uint32_t>(row / 16));
      });
    }
  }
}

// A NaN code, an infinity or a NaN scale in one row of A and one of B.
TEST(GemmBlockScaled, NanAndInfinitySpoilTheirRowOrColumnOnly) {
  for (const char* name : {"e5m2 mx 1x32", "e5m2 128x128", "e5m2 1x128 float", "e5m2 mx 32x1"}) {
    for_each_layout(shape(20, 150, 140), [&](const GemmCase& spec) {
      BlockProblem problem(spec, kind_named(name), kind_named(name), 3);
      for (auto* operand : {&problem.a, &problem.b}) {
        operand->fill([] { return 1.0; });
      }
      (spec.a_transposed ? problem.a.code(139, 2) : problem.a.code(2, 139)) = 0x7E;
      (spec.b_transposed ? problem.b.code(1, 133) : problem.b.code(133, 1)) = 0x7C;
      for_each_result(problem, threads(1), [&](const GemmMatrix& d, const GemmMatrix&) {
        for (int64_t row = 0; row < spec.m; ++row) {
          for (int64_t col = 0; col < spec.n; ++col) {
            const float value = d.get(row, col);
            EXPECT_TRUE(row == 2     ? std::isnan(value)
                        : col == 133 ? std::isinf(value) && value > 0
                                     : std::isfinite(value))
                << row << " " << col << ": " << value;
          }
        }
      });
    });
  }
}

TEST(GemmBlockScaled, NanScaleSpoilsItsBlockOnly) {
  for (const char* name : {"e4m3 mx 1x32", "nvfp4", "nvfp4 row-scaled"}) {
    const OperandKind& kind = kind_named(name);
    GemmCase spec = shape(20, 40, 96);
    BlockProblem problem(spec, kind, kind_named("e4m3 tensor"), 3);
    problem.a.fill_scales([] { return 1.0; });
    problem.a.set_scale_code(7, 64, kind.dtype == DType::kFloat4E2M1 ? 0x7F : 0xFF);
    for_each_result(problem, threads(1), [&](const GemmMatrix& d, const GemmMatrix&) {
      for (int64_t row = 0; row < spec.m; ++row) {
        for (int64_t col = 0; col < spec.n; ++col) {
          EXPECT_EQ(std::isnan(d.get(row, col)), row == 7) << row << " " << col;
        }
      }
    });
  }
}

TEST(GemmBlockScaled, EmptySizes) {
  unsigned seed = 30000;
  for_each_pairing([&](const OperandKind& a, const OperandKind& b) {
    for (const GemmCase& size : {shape(3, 18, 0), shape(20, 40, 0)}) {
      ++seed;
      BlockProblem problem(with_epilogue(size, seed), a, b, seed);
      expect_results_match_fp64(problem, 1);
    }
    for (const GemmCase& size : {shape(0, 5, 7), shape(5, 0, 7), shape(0, 0, 0)}) {
      BlockProblem problem(size, a, b, 1);
      GemmMatrix d = problem.d_before;
      GemmMatrix pre;
      EXPECT_NO_THROW(te::gemm(problem.args(d, pre), threads(2)));
    }
  });
}

TEST(GemmBlockScaled, AnEmptyE2M1OperandNeedsNoScales) {
  BlockProblem problem(shape(3, 5, 0), kind_named("nvfp4"), kind_named("bfloat16"), 1);
  GemmMatrix d = problem.d_before;
  GemmMatrix pre;
  te::GemmArgs args = problem.args(d, pre);
  args.a.scales = {};
  args.a.matrix.data = nullptr;
  te::gemm(args, threads(1));
  EXPECT_EQ(d.bytes, GemmMatrix(DType::kFloat32, 3, 5).bytes);
}

TEST(GemmBlockScaled, FewRowsAreSkinnyAndOthersPacked) {
  const auto chosen = [](int64_t m, const char* a, const char* b) {
    BlockProblem problem(shape(m, 32, 64), kind_named(a), kind_named(b), 1);
    GemmMatrix d = problem.d_before;
    GemmMatrix pre;
    for (const auto& status : te::gemm_candidates(problem.args(d, pre), threads(1))) {
      if (status.refusal == nullptr) {
        return std::string(status.name);
      }
    }
    return std::string();
  };
  EXPECT_EQ(chosen(12, "e4m3 mx 1x32", "e4m3 mx 1x32"), "cpu skinny");
  EXPECT_EQ(chosen(13, "e4m3 mx 1x32", "e4m3 mx 1x32"), "cpu packed");
  EXPECT_EQ(chosen(16, "e4m3 mx 1x32", "bfloat16"), "cpu skinny");
  EXPECT_EQ(chosen(17, "nvfp4", "bfloat16"), "cpu packed");
}

// The framework's GEMM would take a problem of this size if both operands were BF16.
TEST(GemmBlockScaled, TheFrameworksGemmTakesNoPairsOfTypes) {
  te::register_framework_functions({"fake", [](const te::GemmArgs&) { return true; }});
  GemmCase spec = shape(256, 1024, 1024);
  spec.d_dtype = DType::kBFloat16;
  for (const char* name : {"bfloat16", "e4m3 tensor", "e4m3 mx 1x32"}) {
    BlockProblem problem(spec, kind_named("bfloat16"), kind_named(name), 1);
    GemmMatrix d = problem.d_before;
    GemmMatrix pre;
    for (const auto& status : te::gemm_candidates(problem.args(d, pre), threads(1))) {
      if (std::string(status.name) == "cpu framework") {
        EXPECT_EQ(status.refusal == nullptr, std::string(name) == "bfloat16") << name;
      }
    }
  }
  te::register_framework_functions({});
}

TEST(GemmBlockScaled, ThreadsDoNotChangeTheBits) {
  unsigned seed = 40000;
  for (const OperandKind& kind : kOperandKinds) {
    for (const GemmCase& size : {shape(70, 130, 100), shape(2, 300, 300)}) {
      BlockProblem problem(size, kind, kind, ++seed);
      std::vector<std::vector<uint8_t>> single;
      for_each_result(problem, threads(1),
                      [&](const GemmMatrix& d, const GemmMatrix&) { single.push_back(d.bytes); });
      for (const int count : {2, 7}) {
        size_t index = 0;
        for_each_result(problem, threads(count), [&](const GemmMatrix& d, const GemmMatrix&) {
          EXPECT_EQ(d.bytes, single[index++]) << count << " threads";
        });
      }
    }
  }
}

class GemmBlockScaledErrors : public ::testing::Test {
 protected:
  GemmBlockScaledErrors()
      : mx_(shape(4, 6, 64), kind_named("e4m3 mx 1x32"), kind_named("e4m3 1x128"), 1),
        fp4_(shape(4, 6, 64), kind_named("nvfp4"), kind_named("nvfp4 row-scaled"), 1),
        d_(mx_.d_before) {}
  te::GemmArgs mx() { return mx_.args(d_, pre_); }
  te::GemmArgs fp4() { return fp4_.args(d_, pre_); }
  // Nothing was written by any refused call.
  void TearDown() override { EXPECT_EQ(d_.bytes, mx_.d_before.bytes); }

  BlockProblem mx_, fp4_;
  GemmMatrix d_, pre_;
};

template <typename Error>
void expect_refused(const te::GemmArgs& args, const char* text) {
  expect_error<Error>([&] { te::gemm(args, threads(1)); }, {text});
}

TEST_F(GemmBlockScaledErrors, MissingScales) {
  te::GemmArgs wrong = fp4();
  wrong.b.scales.data = nullptr;
  expect_refused<te::ValueError>(
      wrong, "gemm: b has dtype float4_e2m1 and no scales; one per block is required.");
  wrong = fp4();
  wrong.a.scales.amax = nullptr;
  expect_refused<te::ValueError>(wrong, "gemm: a has no scales.amax; float4_e2m1 needs its amax");
}

TEST_F(GemmBlockScaledErrors, TypesOfScales) {
  te::GemmArgs wrong = mx();
  wrong.a.scales.dtype = DType::kFloat8E4M3;
  expect_refused<te::TypeError>(
      wrong, "gemm: a has dtype float8_e4m3 and scales of float8_e4m3; float8 with float32 or");
  wrong = fp4();
  wrong.b.scales.dtype = DType::kFloat8E8M0;
  expect_refused<te::TypeError>(
      wrong, "gemm: b has dtype float4_e2m1 and scales of float8_e8m0; float8 with float32 or");
  wrong = mx();
  GemmMatrix plain(DType::kBFloat16, 4, 64);
  wrong.a.matrix = plain.view();
  expect_refused<te::TypeError>(
      wrong, "gemm: a has dtype bfloat16 and scales of float8_e8m0; float8 with float32 or");
}

TEST_F(GemmBlockScaledErrors, BlocksAndStrides) {
  te::GemmArgs wrong = mx();
  wrong.a.scales.block_rows = 0;
  expect_refused<te::ValueError>(wrong,
                                 "gemm: a has blocks of 0 x 32; sizes of 1 or more are required.");
  wrong = mx();
  wrong.b.scales.block_cols = -128;
  expect_refused<te::ValueError>(
      wrong, "gemm: b has blocks of 1 x -128; sizes of 1 or more are required.");
  wrong = mx();
  wrong.a.scales.row_stride = -1;
  expect_refused<te::ValueError>(
      wrong, "gemm: a has scales with strides -1 and 1; 0 or more is required.");
  wrong = mx();
  wrong.a.scales.col_stride = -2;
  expect_refused<te::ValueError>(wrong, "and -2; 0 or more is required.");
}

TEST_F(GemmBlockScaledErrors, TwoScales) {
  te::GemmArgs wrong = mx();
  wrong.a.scale_inv = &mx_.a.scale_inv;
  expect_refused<te::ValueError>(wrong, "gemm: a has a scale_inv and scales; one of both is");
  wrong = fp4();
  wrong.a.scale_inv = &fp4_.a.scale_inv;
  expect_refused<te::ValueError>(wrong, "gemm: a has a scale_inv and dtype float4_e2m1; only");
}

TEST_F(GemmBlockScaledErrors, SecondLevel) {
  te::GemmArgs wrong = mx();
  wrong.b.scales.amax = &mx_.b.scale_inv;
  expect_refused<te::ValueError>(
      wrong, "gemm: b has an amax and dtype float8_e4m3; only float4_e2m1 operands have one.");
  wrong = fp4();
  wrong.a.scales.e4m3_max = 440.0F;
  expect_refused<te::ValueError>(wrong, "gemm: a has e4m3_max 440; 448 or 256 is required.");
}

TEST_F(GemmBlockScaledErrors, TwoHighPrecisionTypes) {
  for (const OperandKind& a : kOperandKinds) {
    for (const OperandKind& b : kOperandKinds) {
      if (!te::testing::is_pair(a, b)) {
        BlockProblem problem(shape(4, 6, 8), a, b, 1);
        expect_refused<te::TypeError>(problem.args(d_, pre_),
                                      "two high-precision operands must be of one type.");
      }
    }
  }
}

TEST_F(GemmBlockScaledErrors, SharedMemory) {
  BlockProblem problem(shape(4, 6, 64), kind_named("nvfp4"), kind_named("nvfp4"), 1);
  te::GemmArgs wrong = problem.args(d_, pre_);
  // The last byte of a's last row.
  wrong.d.data = static_cast<uint8_t*>(wrong.a.matrix.data) + 4 * 32 - 1;
  expect_refused<te::ValueError>(wrong, "gemm: d shares memory with a; outputs need memory of");
}

}  // namespace
