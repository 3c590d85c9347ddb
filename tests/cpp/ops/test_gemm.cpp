// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// gemm(): the reference, the packed and the skinny GEMM on every instruction set of this machine,
// against FP64.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/framework.h>
#include <transformer_engine/report.h>

#include "helpers/gemm_implementations.h"
#include "helpers/gemm_problem.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::for_each_result;
using te::testing::GemmCase;
using te::testing::GemmMatrix;
using te::testing::GemmProblem;
using te::testing::threads;

constexpr DType kHighPrecision[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

void expect_matches_fp64(const GemmCase& spec, unsigned seed, int num_threads = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  GemmProblem problem(spec, [&] { return normal(random); });
  te::testing::expect_results_match_fp64(problem, num_threads);
}

std::vector<std::pair<DType, DType>> operand_types() {
  std::vector<std::pair<DType, DType>> pairs;
  for (const DType a : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (const DType b : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      pairs.emplace_back(a, b);
    }
  }
  for (const DType dtype : kHighPrecision) {
    pairs.emplace_back(dtype, dtype);
  }
  return pairs;
}

// Every operand type and layout, with each of the given shapes.
void for_each_operand_case(const std::vector<GemmCase>& shapes,
                           const std::function<void(const GemmCase&)>& body) {
  for (const auto& [a, b] : operand_types()) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        for (GemmCase spec : shapes) {
          spec.a_dtype = a;
          spec.b_dtype = b;
          spec.a_transposed = a_transposed;
          spec.b_transposed = b_transposed;
          body(spec);
        }
      }
    }
  }
}

GemmCase shape(int64_t m, int64_t n, int64_t k) {
  GemmCase spec;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  return spec;
}

TEST(Gemm, EveryOperandTypeLayoutAndEpilogueMatchesFp64) {
  unsigned seed = 1;
  const std::vector<GemmCase> shapes = {shape(1, 1, 1), shape(3, 37, 67), shape(10, 6, 64),
                                        shape(17, 33, 130)};
  for_each_operand_case(shapes, [&](GemmCase spec) {
    for (const DType d_dtype : kHighPrecision) {
      spec.d_dtype = d_dtype;
      expect_matches_fp64(spec, ++seed);
      GemmCase with_bias = spec;
      with_bias.has_bias = true;
      with_bias.bias_dtype = kHighPrecision[seed % 3];
      expect_matches_fp64(with_bias, ++seed);
      with_bias.has_gelu = true;
      with_bias.has_pre = seed % 2 == 0;
      with_bias.bias_dtype = kHighPrecision[seed % 3];
      expect_matches_fp64(with_bias, ++seed);
      GemmCase accumulating = spec;
      accumulating.accumulate = true;
      expect_matches_fp64(accumulating, ++seed);
    }
  });
}

TEST(Gemm, EdgesOfTilesMatchFp64) {
  unsigned seed = 1000;
  std::vector<GemmCase> shapes;
  for (const int64_t m : {2, 4, 13, 15, 29}) {
    for (const int64_t n : {15, 16, 31, 65}) {
      for (const int64_t k : {2, 15, 63, 64}) {
        shapes.push_back(shape(m, n, k));
      }
    }
  }
  for_each_operand_case(shapes, [&](GemmCase spec) {
    spec.d_dtype = kHighPrecision[++seed % 3];
    expect_matches_fp64(spec, seed);
  });
}

TEST(Gemm, PreEpilogueWithoutEpilogueEqualsD) {
  GemmCase spec = shape(6, 20, 33);
  spec.has_bias = true;
  spec.has_pre = true;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  GemmProblem problem(spec, [&] { return normal(random); });
  for_each_result(problem, threads(1), [](const GemmMatrix& d, const GemmMatrix& pre) {
    EXPECT_EQ(d.bytes, pre.bytes);
  });
}

// Small whole numbers: every sum is exact in FP32, so every order of summation gives its bits.
// Larger than one block in every direction.
TEST(Gemm, WholeNumbersAreExactAcrossBlocksAndParts) {
  for (const auto& [dtype, k] :
       {std::pair{DType::kFloat8E4M3, 1029}, std::pair{DType::kFloat32, 515}}) {
    GemmCase spec = shape(401, 1061, k);
    spec.a_dtype = dtype;
    spec.b_dtype = dtype;
    spec.b_transposed = true;
    std::mt19937 random(11);
    std::uniform_int_distribution<int> whole(-3, 3);
    GemmProblem problem(spec, [&] { return static_cast<float>(whole(random)); });
    problem.a_scale_inv = 0.5F;
    problem.b_scale_inv = 4.0F;
    std::vector<float> b_wide;
    for (int64_t i = 0; i < spec.k; ++i) {
      for (int64_t col = 0; col < spec.n; ++col) {
        b_wide.push_back(problem.b_at(col, i));
      }
    }
    GemmMatrix expected(DType::kFloat32, spec.m, spec.n);
    for (int64_t row = 0; row < spec.m; ++row) {
      std::vector<float> sums(static_cast<size_t>(spec.n));
      for (int64_t i = 0; i < spec.k; ++i) {
        const float factor = problem.a_at(row, i) * (te::is_fp8(dtype) ? 2.0F : 1.0F);
        for (int64_t col = 0; col < spec.n; ++col) {
          sums[static_cast<size_t>(col)] += factor * b_wide[static_cast<size_t>(i * spec.n + col)];
        }
      }
      std::memcpy(expected.at(row, 0), sums.data(), sums.size() * sizeof(float));
    }
    for_each_result(problem, threads(2), [&](const GemmMatrix& d, const GemmMatrix&) {
      EXPECT_EQ(d.bytes, expected.bytes);
    });
  }
}

// A times the identity: every code of both formats comes through every layout unchanged. NaN and
// infinity would spoil their whole row; the next test has them.
TEST(Gemm, DecodesEveryFp8Code) {
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (const bool transposed : {false, true}) {
      GemmCase spec = shape(4, 64, 64);
      spec.a_dtype = dtype;
      spec.b_dtype = dtype;
      spec.a_transposed = transposed;
      spec.b_transposed = transposed;
      GemmProblem problem(spec, [] { return 0.0F; });
      problem.a_scale_inv = problem.b_scale_inv = 1.0F;
      for (int64_t i = 0; i < 64; ++i) {
        problem.b.set(i, i, 1.0F);
      }
      for (int code = 0; code < 256; ++code) {
        const int row = code / 64;
        const int i = code % 64;
        uint8_t& element = *(transposed ? problem.a.at(i, row) : problem.a.at(row, i));
        element = static_cast<uint8_t>(code);
        if (!std::isfinite(problem.a_at(row, i))) {
          element = 0;
        }
      }
      for_each_result(problem, threads(1), [&](const GemmMatrix& d, const GemmMatrix&) {
        for (int64_t row = 0; row < 4; ++row) {
          for (int64_t i = 0; i < 64; ++i) {
            EXPECT_EQ(d.get(row, i), problem.a_at(row, i)) << row << " " << i;
          }
        }
      });
    }
  }
}

TEST(Gemm, NanAndInfinitySpoilTheirRowOrColumnOnly) {
  for_each_operand_case({shape(4, 35, 70)}, [&](const GemmCase& spec) {
    GemmProblem problem(spec, [] { return 1.0F; });
    const auto put = [](GemmMatrix& matrix, bool transposed, int64_t row, int64_t i, float value) {
      transposed ? matrix.set(i, row, value) : matrix.set(row, i, value);
    };
    const float infinity = std::numeric_limits<float>::infinity();
    put(problem.a, spec.a_transposed, 2, 69, std::nanf(""));
    // E4M3 has no infinity; encoding saturates for E5M2, whose infinity is code 0x7C.
    const bool has_infinity = spec.b_dtype != DType::kFloat8E4M3;
    if (spec.b_dtype == DType::kFloat8E5M2) {
      *(spec.b_transposed ? problem.b.at(1, 33) : problem.b.at(33, 1)) = 0x7C;
    } else if (has_infinity) {
      put(problem.b, spec.b_transposed, 33, 1, infinity);
    }
    put(problem.a, spec.a_transposed, 1, 1, 0.0F);
    for_each_result(problem, threads(1), [&](const GemmMatrix& d, const GemmMatrix&) {
      for (int64_t row = 0; row < 4; ++row) {
        for (int64_t col = 0; col < 35; ++col) {
          const float value = d.get(row, col);
          const bool is_zero_times_infinity = has_infinity && row == 1 && col == 33;
          if (row == 2 || is_zero_times_infinity) {
            EXPECT_TRUE(std::isnan(value)) << row << " " << col;
          } else if (has_infinity && col == 33) {
            EXPECT_EQ(value, infinity) << row;
          } else {
            EXPECT_TRUE(std::isfinite(value)) << row << " " << col;
          }
        }
      }
    });
  });
}

// Denormal BF16 numbers count as themselves or as 0, nothing else; see gemm.h.
TEST(Gemm, DenormalBf16OperandsAreKeptOrZero) {
  GemmCase spec = shape(3, 32, 32);
  spec.a_dtype = spec.b_dtype = DType::kBFloat16;
  GemmProblem problem(spec, [] { return 0.0F; });
  for (int64_t i = 0; i < 32; ++i) {
    problem.b.set(i, i, 0x1p100F);
    problem.a.set(0, i, 0x1p-127F);
    problem.a.set(1, i, 0x1p-133F);
    problem.a.set(2, i, 0x1p-126F);
  }
  for_each_result(problem, threads(1), [](const GemmMatrix& d, const GemmMatrix&) {
    for (int64_t col = 0; col < 32; ++col) {
      EXPECT_TRUE(d.get(0, col) == 0x1p-27F || d.get(0, col) == 0.0F);
      EXPECT_TRUE(d.get(1, col) == 0x1p-33F || d.get(1, col) == 0.0F);
      EXPECT_EQ(d.get(2, col), 0x1p-26F);
    }
  });
}

TEST(Gemm, EmptySizes) {
  for_each_operand_case({shape(3, 18, 0), shape(20, 40, 0)}, [&](GemmCase spec) {
    expect_matches_fp64(spec, 1);
    GemmCase with_bias = spec;
    with_bias.has_bias = with_bias.has_gelu = with_bias.has_pre = true;
    expect_matches_fp64(with_bias, 2);
    spec.accumulate = true;
    expect_matches_fp64(spec, 3);
  });
  for (const GemmCase& spec : {shape(0, 5, 7), shape(5, 0, 7), shape(0, 0, 0)}) {
    GemmProblem problem(spec, [] { return 1.0F; });
    GemmMatrix d = problem.d_before;
    GemmMatrix pre;
    EXPECT_NO_THROW(te::gemm(problem.args(d, pre), threads(2)));
  }
}

TEST(Gemm, ThreadsDoNotChangeTheBits) {
  for (const GemmCase& base : {shape(130, 170, 300), shape(2, 900, 700)}) {
    GemmCase spec = base;
    spec.a_dtype = spec.b_dtype = DType::kBFloat16;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    GemmProblem problem(spec, [&] { return normal(random); });
    std::vector<std::vector<uint8_t>> single;
    for_each_result(problem, threads(1),
                    [&](const GemmMatrix& d, const GemmMatrix&) { single.push_back(d.bytes); });
    for (const int count : {2, 3, 7}) {
      size_t index = 0;
      for_each_result(problem, threads(count), [&](const GemmMatrix& d, const GemmMatrix&) {
        EXPECT_EQ(d.bytes, single[index++]) << count << " threads";
      });
    }
  }
}

// Weight gradients: BF16 operands, sums over several calls kept in FP32. In BF16 the later calls
// would be lost: 2^12 + 1 is no BF16 number.
TEST(Gemm, AccumulatesInFp32AcrossCalls) {
  GemmCase spec = shape(21, 35, 64);
  spec.a_dtype = spec.b_dtype = DType::kBFloat16;
  spec.a_transposed = spec.b_transposed = true;
  spec.accumulate = true;
  for (const auto& implementation : te::testing::gemm_implementations()) {
    SCOPED_TRACE(implementation.name);
    GemmProblem large(spec, [] { return 8.0F; });
    GemmProblem small(spec, [] { return 0.125F; });
    GemmMatrix d(DType::kFloat32, spec.m, spec.n);
    GemmMatrix pre;
    if (implementation.refusal(large.args(d, pre), threads(1)) != nullptr) {
      continue;
    }
    implementation.run(large.args(d, pre), threads(1));
    for (int call = 0; call < 5; ++call) {
      implementation.run(small.args(d, pre), threads(1));
    }
    for (int64_t row = 0; row < spec.m; ++row) {
      for (int64_t col = 0; col < spec.n; ++col) {
        ASSERT_EQ(d.get(row, col), 4096.0F + 5.0F);
      }
    }
  }
}

template <typename Error>
void expect_error(const te::GemmArgs& args, const std::string& text) {
  try {
    te::gemm(args, threads(1));
    ADD_FAILURE() << "no error; expected one with: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

class GemmErrors : public ::testing::Test {
 protected:
  GemmErrors() : problem_(shape(4, 6, 8), [] { return 1.0F; }), d_(problem_.d_before) {
    pre_ = GemmMatrix(DType::kFloat32, 4, 6);
  }
  te::GemmArgs args() { return problem_.args(d_, pre_); }
  // Nothing was written by any refused call.
  void TearDown() override { EXPECT_EQ(d_.bytes, problem_.d_before.bytes); }

  GemmProblem problem_;
  GemmMatrix d_, pre_;
};

TEST_F(GemmErrors, OperandTypes) {
  te::GemmArgs wrong = args();
  wrong.a.matrix.dtype = DType::kInt32;
  expect_error<te::TypeError>(wrong, "gemm: a has dtype int32; float32, float16, bfloat16");
  wrong = args();
  GemmMatrix b(DType::kBFloat16, 6, 8);
  wrong.b.matrix = b.view();
  expect_error<te::TypeError>(wrong,
                              "gemm: a has dtype float32 and b bfloat16; two high-precision");
}

TEST_F(GemmErrors, Sizes) {
  te::GemmArgs wrong = args();
  wrong.b.is_transposed = true;
  expect_error<te::ValueError>(wrong, "gemm: a has k = 8 and b k = 6; they must be equal");
  wrong = args();
  wrong.d.cols = 5;
  expect_error<te::ValueError>(wrong, "gemm: d has shape [4, 5]; [4, 6] is required");
  wrong = args();
  wrong.bias = problem_.bias.view();
  wrong.bias.cols = 5;
  expect_error<te::ValueError>(wrong, "gemm: bias has shape [1, 5]; [1, 6] is required");
  wrong = args();
  wrong.pre_epilogue = pre_.view();
  wrong.pre_epilogue.rows = 3;
  expect_error<te::ValueError>(wrong, "gemm: pre_epilogue has shape [3, 6]; [4, 6] is required");
  wrong = args();
  wrong.a.matrix.rows = -1;
  expect_error<te::ValueError>(wrong, "gemm: a has shape [-1, 8]; sizes must not be negative");
}

TEST_F(GemmErrors, MissingData) {
  te::GemmArgs wrong = args();
  wrong.a.matrix.data = nullptr;
  expect_error<te::ValueError>(wrong, "gemm: a has no data for shape [4, 8]");
  wrong = args();
  wrong.d.data = nullptr;
  expect_error<te::ValueError>(wrong, "gemm: d has no data for shape [4, 6]");
}

TEST_F(GemmErrors, OutputTypes) {
  te::GemmArgs wrong = args();
  wrong.d.dtype = DType::kFloat8E4M3;
  expect_error<te::TypeError>(wrong, "gemm: d has dtype float8_e4m3; float32, float16 or");
  wrong = args();
  wrong.bias = problem_.bias.view();
  wrong.bias.dtype = DType::kByte;
  expect_error<te::TypeError>(wrong, "gemm: bias has dtype byte; float32, float16 or");
  wrong = args();
  wrong.pre_epilogue = pre_.view();
  wrong.pre_epilogue.dtype = DType::kBFloat16;
  expect_error<te::TypeError>(wrong, "gemm: pre_epilogue has dtype bfloat16 and d float32");
}

TEST_F(GemmErrors, ScaleOfAHighPrecisionOperand) {
  te::GemmArgs wrong = args();
  wrong.b.scale_inv = &problem_.b_scale_inv;
  expect_error<te::ValueError>(wrong, "gemm: b has a scale_inv and dtype float32; only float8");
}

TEST_F(GemmErrors, SharedMemory) {
  te::GemmArgs wrong = args();
  wrong.a.matrix.data = d_.bytes.data();
  wrong.a.matrix.rows = wrong.d.rows = 3;
  expect_error<te::ValueError>(wrong, "gemm: d shares memory with a; outputs need memory of their");
  wrong = args();
  wrong.pre_epilogue = d_.view();
  expect_error<te::ValueError>(wrong, "gemm: pre_epilogue shares memory with d");
  wrong = args();
  wrong.bias = d_.view();
  wrong.bias.rows = 1;
  expect_error<te::ValueError>(wrong, "gemm: d shares memory with bias");
}

TEST_F(GemmErrors, AccumulateTakesNothingElse) {
  te::GemmArgs wrong = args();
  wrong.accumulate = true;
  wrong.bias = problem_.bias.view();
  expect_error<te::ValueError>(wrong, "gemm: accumulate is set together with bias");
  wrong.bias = {};
  wrong.epilogue = te::GemmEpilogue::kGELU;
  expect_error<te::ValueError>(wrong, "gemm: accumulate is set together with an epilogue");
  wrong.epilogue = te::GemmEpilogue::kNone;
  wrong.pre_epilogue = pre_.view();
  expect_error<te::ValueError>(wrong, "gemm: accumulate is set together with pre_epilogue");
}

TEST_F(GemmErrors, UnknownEpilogue) {
  te::GemmArgs wrong = args();
  wrong.epilogue = static_cast<te::GemmEpilogue>(9);
  expect_error<te::ValueError>(wrong, "gemm: epilogue is 9; kNone or kGELU is required");
}

TEST_F(GemmErrors, DeviceWithoutBackendNamesEveryCandidate) {
  te::Context cuda;
  cuda.device = te::DeviceType::kCUDA;
  try {
    te::gemm(args(), cuda);
    ADD_FAILURE() << "no error";
  } catch (const te::NotImplementedError& error) {
    const std::string text = error.what();
    for (const auto& status : te::gemm_candidates(args(), cuda)) {
      ASSERT_NE(status.refusal, nullptr) << status.name;
      EXPECT_NE(text.find(std::string(status.name) + ": " + status.refusal), std::string::npos);
    }
  }
}

const char* chosen(const te::GemmArgs& args) {
  for (const auto& status : te::gemm_candidates(args, threads(1))) {
    if (status.refusal == nullptr) {
      return status.name;
    }
  }
  return "none";
}

bool framework_answer = true;
int framework_calls = 0;
bool fake_framework_gemm(const te::GemmArgs&) {
  ++framework_calls;
  return framework_answer;
}

class GemmCandidates : public ::testing::Test {
 protected:
  void SetUp() override { te::register_framework_functions({"fake", fake_framework_gemm}); }
  void TearDown() override { te::register_framework_functions({}); }

  std::string chosen_for(GemmCase spec, DType dtype) {
    spec.a_dtype = spec.b_dtype = spec.bias_dtype = dtype;
    GemmProblem problem(spec, [] { return 1.0F; });
    GemmMatrix d = problem.d_before;
    GemmMatrix pre(d.dtype, d.rows, d.cols);
    return chosen(problem.args(d, pre));
  }
};

TEST_F(GemmCandidates, FewRowsAreSkinny) {
  EXPECT_EQ(chosen_for(shape(16, 32, 64), DType::kFloat8E4M3), "cpu skinny");
  EXPECT_EQ(chosen_for(shape(17, 32, 64), DType::kFloat8E4M3), "cpu packed");
  EXPECT_EQ(chosen_for(shape(2, 8, 32769), DType::kFloat16), "cpu packed");
}

TEST_F(GemmCandidates, LargePlainBf16IsTheFrameworks) {
  GemmCase spec = shape(512, 1024, 512);
  spec.d_dtype = DType::kBFloat16;
  EXPECT_EQ(chosen_for(spec, DType::kBFloat16), "cpu framework");
  spec.has_gelu = true;
  EXPECT_EQ(chosen_for(spec, DType::kBFloat16), "cpu packed");
  spec.has_gelu = false;
  spec.d_dtype = DType::kFloat32;
  EXPECT_EQ(chosen_for(spec, DType::kBFloat16), "cpu packed");
  EXPECT_EQ(chosen_for(spec, DType::kFloat16), "cpu packed");
}

TEST_F(GemmCandidates, Fp32AndSmallBf16AreTheCoresOwn) {
  GemmCase spec = shape(64, 64, 64);
  const bool is_base = std::string(te::cpu_instruction_set()) == "base";
  const char* expected = is_base ? "cpu framework" : "cpu packed";
  EXPECT_EQ(chosen_for(spec, DType::kFloat32), expected);
  spec.d_dtype = DType::kBFloat16;
  EXPECT_EQ(chosen_for(spec, DType::kBFloat16), expected);
}

TEST_F(GemmCandidates, AFrameworkThatRefusesIsReplaced) {
  GemmCase spec = shape(129, 128, 16384);
  spec.a_dtype = spec.b_dtype = spec.d_dtype = DType::kBFloat16;
  GemmProblem problem(spec, [] { return 0.5F; });
  GemmMatrix d = problem.d_before;
  GemmMatrix pre;
  framework_calls = 0;
  framework_answer = false;
  te::gemm(problem.args(d, pre), threads(1));
  framework_answer = true;
  EXPECT_EQ(framework_calls, 1);
  EXPECT_EQ(d.get(128, 127), 4096.0F);
}

}  // namespace
