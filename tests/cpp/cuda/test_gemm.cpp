// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// gemm() on CUDA against FP64: conversions, scales, epilogues. In the emulator with a stand-in for
// cuBLASLt (fake_cublaslt.h), which says what it was given: descriptors and their cache are tested
// there, too.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/framework.h>
#include <transformer_engine/grouped_gemm.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/device_mirror.h"
#include "helpers/errors.h"
#include "helpers/gemm_block_operand.h"
#include "helpers/gemm_group.h"
#if defined(TE_CUDA_EMULATED)
#include "capture.h"
#include "cuda/architecture.h"
#include "cuda/fake_cublaslt.h"
#include "cuda/gemm/matmul.h"
#include "stream_log.h"
#endif

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::BlockProblem;
using te::testing::DeviceMirror;
using te::testing::GemmCase;
using te::testing::GemmMatrix;
using te::testing::kOnDevice;
using te::testing::kOperandKinds;
using te::testing::OperandKind;

constexpr DType kHighPrecision[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

GemmCase shape(int64_t m, int64_t n, int64_t k) {
  GemmCase spec;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  return spec;
}

GemmCase with_epilogue(GemmCase spec, unsigned choice) {
  spec.d_dtype = kHighPrecision[choice % 3];
  spec.bias_dtype = kHighPrecision[choice / 3 % 3];
  spec.has_bias = choice % 5 == 1 || choice % 5 == 2;
  spec.has_gelu = choice % 5 == 2 || choice % 5 == 4;
  spec.has_pre = choice % 5 == 2;
  spec.accumulate = choice % 5 == 3;
  return spec;
}

void expect_close(double got, const te::testing::GemmExpected& expected, const std::string& what) {
  EXPECT_LE(std::abs(got - expected.value), expected.tolerance)
      << what << ": got " << got << ", expected " << expected.value;
}

void expect_matches_fp64(BlockProblem& problem) {
  GemmMatrix d = problem.d_before;
  GemmMatrix pre(d.dtype, d.rows, d.cols);
  DeviceMirror mirror;
  te::gemm(mirror.view(problem.args(d, pre)), kOnDevice);
  mirror.download();
  for (int64_t row = 0; row < d.rows; ++row) {
    for (int64_t col = 0; col < d.cols; ++col) {
      const auto expected = problem.expected(row, col);
      const std::string where =
          problem.spec().text() + " at " + std::to_string(row) + ", " + std::to_string(col);
      expect_close(d.get(row, col), expected.d, where);
      if (problem.spec().has_pre) {
        expect_close(pre.get(row, col), expected.pre, where + " before the epilogue");
      }
    }
  }
}

const OperandKind& kind_named(const std::string& name) {
  for (const OperandKind& kind : kOperandKinds) {
    if (kind.name == name) {
      return kind;
    }
  }
  throw std::invalid_argument(name);
}

#if defined(TE_CUDA_EMULATED)
namespace cuda = transformer_engine::cuda;
using te::testing::Architecture;
using Library = te::testing::FakeCublasLt;
constexpr const char* kArchitectures[] = {"80", "90", "100"};
#else
struct Library {  // cuBLASLt itself
  Library() { te::testing::has_tensor_cores = true; }
  ~Library() { te::testing::has_tensor_cores = false; }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};
constexpr const char* kArchitectures[] = {"the device's"};
struct Architecture {
  explicit Architecture(const char*) {}
};
#endif

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

TEST(CudaGemm, EveryPairingLayoutAndArchitectureMatchesFp64) {
  const Library library;
  const GemmCase shapes[] = {shape(7, 16, 64), shape(17, 32, 128), shape(5, 7, 33),
                             shape(3, 16, 96), shape(1, 1, 1)};
  for (const char* capability : kArchitectures) {
    const Architecture architecture(capability);
    unsigned seed = 0;
    for (const OperandKind& a : kOperandKinds) {
      for (const OperandKind& b : kOperandKinds) {
        if (!te::testing::is_pair(a, b) ||
            (te::testing::kIsSlowDevice && a.name != b.name && (seed++ & 7U) != 0)) {
          continue;
        }
        for_each_layout(shapes[seed / 4 % 5], [&](const GemmCase& spec) {
          ++seed;
          BlockProblem problem(with_epilogue(spec, seed), a, b, seed);
          expect_matches_fp64(problem);
        });
      }
    }
  }
}

TEST(CudaGemm, EveryEpilogueAndTypeOfResultMatchesFp64) {
  const Library library;
  for (const char* capability : kArchitectures) {
    const Architecture architecture(capability);
    unsigned seed = 5000;
    for (const OperandKind& kind : kOperandKinds) {
      for (unsigned choice = 0; choice < 45; ++choice) {
        if (te::testing::kIsSlowDevice && choice % 9 != 0) {
          continue;
        }
        BlockProblem problem(with_epilogue(shape(6, 32, 64), choice), kind, kind, ++seed);
        expect_matches_fp64(problem);
      }
    }
  }
}

// What cuBLASLt multiplies as it is on Hopper.
TEST(CudaGemm, Fp8BlocksInWholeMultiplesMatchFp64) {
  const Library library;
  const char* const row = "e4m3 1x128";
  const char* const square = "e4m3 128x128 float";
  const char* const pairs[][2] = {
      {row, row}, {row, square}, {square, row}, {row, "e5m2 1x128 float"}};
  unsigned seed = 100;
  for (const auto& [a, b] : pairs) {
    for (const unsigned choice : {0U, 1U, 3U, 4U, 9U, 13U}) {
      const GemmCase spec =
          with_epilogue(shape(140, 144, te::testing::kIsSlowDevice ? 128 : 256), choice);
      if (te::testing::kIsSlowDevice && choice != 1U) {
        continue;
      }
      BlockProblem problem(spec, kind_named(a), kind_named(b), ++seed);
      expect_matches_fp64(problem);
    }
  }
}

TEST(CudaGemm, EveryProductOfAGroupMatchesFp64) {
  const Library library;
  for (size_t count = 0; count <= 9; ++count) {
    te::testing::GemmGroup group(count, static_cast<unsigned>(count));
    DeviceMirror mirror;
    std::vector<te::GemmArgs> products;
    for (const te::GemmArgs& args : group.args()) {
      products.push_back(mirror.view(args));
    }
    te::grouped_gemm({products}, kOnDevice);
    mirror.download();
    group.expect_results_match_fp64();
  }
}

TEST(CudaGemm, NoDepthGivesZerosAndBias) {
  const Library library;
  for (unsigned choice = 0; choice < 15; ++choice) {
    BlockProblem problem(with_epilogue(shape(3, 5, 0), choice), kOperandKinds[1], kOperandKinds[1],
                         choice);
    expect_matches_fp64(problem);
  }
#if defined(TE_CUDA_EMULATED)
  EXPECT_EQ(Library::calls().matmuls, 0);
#endif
}

#if defined(TE_CUDA_EMULATED)

// The product that cuBLASLt is given for a problem of 16 x 32 x 128.
te::testing::CublasLtCalls calls_of(const char* kind, const char* capability, GemmCase spec) {
  const Architecture architecture(capability);
  const Library library;
  BlockProblem problem(spec, kind_named(kind), kind_named(kind), 1);
  expect_matches_fp64(problem);
  return Library::calls();
}

TEST(CudaGemm, EachFormatIsMultipliedNativelyWhereTheArchitectureHasIt) {
  const GemmCase spec = with_epilogue(shape(16, 32, 128), 1);  // BF16 with a bias of FP32
  const auto type_of = [&](const char* kind, const char* capability) {
    return calls_of(kind, capability, spec).a_type;
  };
  EXPECT_EQ(type_of("e4m3 tensor", "80"), CUDA_R_16BF);
  EXPECT_EQ(type_of("e4m3 tensor", "90"), CUDA_R_8F_E4M3);
  EXPECT_EQ(type_of("e4m3 mx 1x32", "90"), CUDA_R_16BF);
  EXPECT_EQ(type_of("e4m3 mx 1x32", "100"), CUDA_R_8F_E4M3);
  EXPECT_EQ(type_of("nvfp4", "90"), CUDA_R_16BF);
  EXPECT_EQ(type_of("nvfp4", "100"), CUDA_R_4F_E2M1);
  EXPECT_EQ(type_of("nvfp4 row-scaled", "100"), CUDA_R_32F);
  EXPECT_EQ(type_of("e4m3 1x128", "90"), CUDA_R_8F_E4M3);
  EXPECT_EQ(type_of("e4m3 1x128", "100"), CUDA_R_16BF);
  EXPECT_EQ(type_of("e4m3 128x128 float", "90"), CUDA_R_32F);  // no product of two such
  EXPECT_EQ(type_of("float16", "90"), CUDA_R_16F);
}

TEST(CudaGemm, Fp8StaysFp8InEveryLayout) {
  for (const char* capability : {"89", "90", "100", "120"}) {
    for_each_layout(shape(32, 48, 64), [&](GemmCase spec) {
      spec.d_dtype = DType::kBFloat16;
      EXPECT_EQ(calls_of("e4m3 tensor", capability, spec).a_type, CUDA_R_8F_E4M3);
      spec.m = 31;  // with k as stored columns its bytes do not matter
      EXPECT_EQ(calls_of("e4m3 tensor", "90", spec).a_type, CUDA_R_8F_E4M3);
    });
  }
}

TEST(CudaGemm, FastAccumulationIsForFp8WithOneScale) {
  const auto fast_products = [&](const char* kind, bool allows) {
    const Architecture architecture("90");
    const Library library;
    GemmCase spec = shape(16, 32, 128);
    spec.d_dtype = DType::kBFloat16;
    BlockProblem problem(spec, kind_named(kind), kind_named(kind), 1);
    GemmMatrix d = problem.d_before;
    DeviceMirror mirror;
    te::GemmArgs args = mirror.view(problem.args(d, d));
    args.allows_fast_accumulation = allows;
    te::gemm(args, kOnDevice);
    return Library::calls().fast_matmuls;
  };
  EXPECT_EQ(fast_products("e4m3 tensor", true), 1);
  EXPECT_EQ(fast_products("e4m3 tensor", false), 0);
  EXPECT_EQ(fast_products("e4m3 1x128", true), 0);
  EXPECT_EQ(fast_products("bfloat16", true), 0);
}

// Blocks of 1 x 128 on one side at least, k a multiple of 128, rows a multiple of 4.
TEST(CudaGemm, Fp8BlocksAreMultipliedNativelyOnHopper) {
  const Architecture architecture("90");
  const auto type_of = [&](const char* a, const char* b, GemmCase spec) {
    const Library library;
    spec.d_dtype = DType::kBFloat16;
    BlockProblem problem(spec, kind_named(a), kind_named(b), 1);
    expect_matches_fp64(problem);
    return Library::calls().a_type;  // of the second operand: by columns they change places
  };
  const char* const row = "e4m3 1x128";
  EXPECT_EQ(type_of(row, row, shape(20, 32, 256)), CUDA_R_8F_E4M3);
  EXPECT_EQ(type_of(row, "e4m3 128x128 float", shape(20, 144, 640)), CUDA_R_8F_E4M3);
  EXPECT_EQ(type_of("e4m3 128x128 float", row, shape(140, 32, 256)), CUDA_R_8F_E4M3);
  EXPECT_EQ(type_of(row, "e5m2 1x128 float", shape(20, 32, 256)), CUDA_R_8F_E5M2);
  EXPECT_EQ(type_of(row, row, shape(21, 32, 256)), CUDA_R_16BF);
  EXPECT_EQ(type_of(row, row, shape(20, 32, 160)), CUDA_R_16BF);
}

TEST(CudaGemm, EpiloguesArePartOfTheProductWhereTypesAllow) {
  GemmCase spec = shape(16, 32, 128);
  spec.d_dtype = spec.bias_dtype = DType::kBFloat16;
  spec.has_bias = spec.has_gelu = spec.has_pre = true;
  EXPECT_EQ(calls_of("bfloat16", "90", spec).epilogue, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  EXPECT_EQ(calls_of("bfloat16", "90", spec).d_type, CUDA_R_16BF);
  spec.bias_dtype = DType::kFloat32;
  EXPECT_EQ(calls_of("bfloat16", "90", spec).epilogue, CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(calls_of("bfloat16", "90", spec).d_type, CUDA_R_32F);
}

TEST(CudaGemm, WhatTheLibraryCallsInvalidIsSaidAndMultipliedInAnotherWay) {
  const Architecture architecture("90");
  const Library library;
  Library::calls().refusal = CUBLAS_STATUS_INVALID_VALUE;
  Library::calls().refused_type = CUDA_R_8F_E4M3;
  BlockProblem problem(shape(16, 64, 208), kind_named("e4m3 tensor"), kind_named("e4m3 tensor"), 1);
  ::testing::internal::CaptureStderr();
  expect_matches_fp64(problem);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("gemm: cuBLASLt 130100 calls a product invalid: m 16, n 64, k 208"),
            std::string::npos)
      << said;
  EXPECT_EQ(Library::calls().a_type, CUDA_R_16BF);
}

TEST(CudaGemm, PartsOfASumAreAddedInFp32) {
  constexpr uint32_t kInOutputType =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  const auto calls = calls_of("bfloat16", "90", shape(16, 32, 224));
  EXPECT_EQ(calls.reduction_schemes & kInOutputType, 0U);
}

// A bias that begins in the middle of 16 bytes, and GELU of an FP32 result.
TEST(CudaGemm, EpiloguesThatTheLibraryDoesLessWellComeAfterTheProduct) {
  const Library library;
  GemmCase spec = shape(16, 32, 144);
  spec.d_dtype = spec.bias_dtype = DType::kBFloat16;
  spec.has_bias = true;
  BlockProblem problem(spec, kind_named("bfloat16"), kind_named("bfloat16"), 1);
  GemmMatrix d = problem.d_before;
  GemmMatrix longer(DType::kBFloat16, 1, 33);
  DeviceMirror mirror;
  te::GemmArgs args = mirror.view(problem.args(d, d));
  te::gemm(args, kOnDevice);
  EXPECT_EQ(Library::calls().epilogue, CUBLASLT_EPILOGUE_BIAS);
  args.bias.data = static_cast<uint8_t*>(mirror.view(longer.view()).data) + 2;
  te::gemm(args, kOnDevice);
  EXPECT_EQ(Library::calls().epilogue, CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(Library::calls().d_type, CUDA_R_32F);

  spec.d_dtype = DType::kFloat32;
  spec.has_bias = false;
  spec.has_gelu = true;
  EXPECT_EQ(calls_of("bfloat16", "90", spec).epilogue, CUBLASLT_EPILOGUE_DEFAULT);
}

TEST(CudaGemm, ARepeatedProductAsksForNoAlgorithm) {
  const Library library;
  for (const OperandKind& kind : kOperandKinds) {
    GemmCase spec = shape(16, 48, 160);  // of no other test
    spec.d_dtype = DType::kBFloat16;
    BlockProblem problem(spec, kind, kind, 3);
    GemmMatrix d = problem.d_before;
    GemmMatrix pre(d.dtype, d.rows, d.cols);
    DeviceMirror mirror;
    const te::GemmArgs args = mirror.view(problem.args(d, pre));
    // All alignments that occur must be known: the heap may move the workspaces.
    for (int i = 0; i < 20; ++i) {
      te::gemm(args, kOnDevice);
    }
    const int asked = Library::calls().heuristics;
    const size_t cached = cuda::cached_matmuls();
    te::gemm(args, kOnDevice);
    EXPECT_EQ(Library::calls().heuristics, asked) << kind.name;
    EXPECT_EQ(cuda::cached_matmuls(), cached) << kind.name;
  }
}

// A product's stream begins after the caller's stream, which waits for it in the end.
TEST(CudaGemm, AGroupRunsBetweenWhatIsBeforeAndAfterOnItsStream) {
  using Step = cuda_emulator::StreamStep;
  const Library library;
  te::testing::GemmGroup group(9, 1);
  DeviceMirror mirror;
  std::vector<te::GemmArgs> products;
  for (const te::GemmArgs& args : group.args()) {
    products.push_back(mirror.view(args));
  }
  te::Context context = kOnDevice;
  context.stream = reinterpret_cast<void*>(uintptr_t{0x50});
  const auto caller = static_cast<cudaStream_t>(context.stream);
  const cuda_emulator::StreamLog log;
  te::grouped_gemm({products}, context);

  std::map<cudaEvent_t, cudaStream_t> recorded;
  std::set<cudaStream_t> begun{caller};  // that wait for what the caller's stream did
  std::set<cudaStream_t> at_work;        // with work that the caller's stream has not waited for
  for (const Step& step : log.steps()) {
    if (step.act == Step::Act::kRecord) {
      recorded[step.event] = step.stream;
    } else if (step.act == Step::Act::kWait && recorded.at(step.event) == caller) {
      begun.insert(step.stream);
    } else if (step.act == Step::Act::kWait) {
      EXPECT_EQ(step.stream, caller);
      at_work.erase(recorded.at(step.event));
    } else {
      EXPECT_TRUE(begun.contains(step.stream));
      at_work.insert(step.stream);
    }
  }
  at_work.erase(caller);
  EXPECT_TRUE(at_work.empty());
  EXPECT_EQ(begun.size(), 4U);
}

// Memory lent by a framework that knows of one stream: none may be lent anew while others are at
// work, so all of it comes back after the last product.
std::vector<char> lending;  // 'l' for lent, 'b' for back
void* lend(size_t bytes, const te::Context&) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
  lending.push_back('l');
  return data;
}
void take_back(void* data, const te::Context&) {
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  lending.push_back('b');
}

TEST(CudaGemm, AGroupGivesItsWorkspacesBackInTheEnd) {
  const Library library;
  const te::FrameworkFunctions before = te::framework_functions();
  te::FrameworkFunctions functions = before;
  functions.allocate_device = &lend;
  functions.free_device = &take_back;
  te::register_framework_functions(functions);
  te::testing::GemmGroup group(9, 1);
  DeviceMirror mirror;
  std::vector<te::GemmArgs> products;
  for (const te::GemmArgs& args : group.args()) {
    products.push_back(mirror.view(args));
  }
  lending.clear();
  te::grouped_gemm({products}, kOnDevice);
  te::register_framework_functions(before);
  mirror.download();
  group.expect_results_match_fp64();
  const auto pieces = static_cast<std::ptrdiff_t>(lending.size() / 2);
  EXPECT_GT(pieces, 1);
  EXPECT_EQ(std::count(lending.begin(), lending.begin() + pieces, 'l'), pieces);
  EXPECT_EQ(std::count(lending.begin() + pieces, lending.end(), 'b'), pieces);
}

// The first product of a stream, as a graph is captured: cudaMalloc is refused there.
TEST(CudaGemm, IsCapturedByAGraph) {
  const Library library;
  for (const OperandKind& kind : kOperandKinds) {
    GemmCase spec = shape(16, 32, 128);
    spec.d_dtype = DType::kBFloat16;
    BlockProblem problem(spec, kind, kind, 3);
    GemmMatrix d = problem.d_before;
    DeviceMirror mirror;
    const te::GemmArgs args = mirror.view(problem.args(d, d));
    te::Context context = kOnDevice;
    context.stream = reinterpret_cast<void*>(uintptr_t{0x40});  // of no other test
    const cuda_emulator::CaptureScope capture;
    te::gemm(args, context);
  }
}

TEST(CudaGemm, WithoutTheLibraryTheReasonIsGiven) {
  if (cuda::cublaslt_refusal() == nullptr) {
    GTEST_SKIP() << "cuBLASLt is installed here";
  }
  BlockProblem problem(shape(2, 2, 2), kOperandKinds[1], kOperandKinds[1], 3);
  GemmMatrix d = problem.d_before;
  te::testing::expect_error<te::NotImplementedError>(
      [&] { te::gemm(problem.args(d, d), kOnDevice); }, {"cuda", "libcublasLt.so.13"});
}

#endif

}  // namespace
