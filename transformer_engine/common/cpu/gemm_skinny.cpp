// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "core/gemm_shape.h"
#include "core/parallel.h"
#include "cpu/gemm.h"
#include "cpu/gemm_finish.h"
#include "cpu/gemm_kernels.h"
#include "cpu/gemm_workspace.h"

namespace transformer_engine::cpu {

namespace {

// Rows of B per thread at least, in multiply-adds: below, waking a thread costs more than it saves.
constexpr int64_t kMultiplyAddsPerThread = int64_t{1} << 18;
// Bounds the prepared copy of A: 16 rows of this length are 2 MiB of FP32.
constexpr int64_t kMaxK = int64_t{1} << 15;

}  // namespace

const char* gemm_skinny_refusal(const GemmArgs& args, const Context& /*context*/) {
  const auto [m, n, k] = gemm_shape(args);
  if (m > TE_CPU_KERNELS(gemm_skinny_kernels).max_rows) {
    return "a has more than 16 rows";
  }
  if (args.a.is_transposed || args.b.is_transposed) {
    return "a and b must be stored with k contiguous";
  }
  if (args.a.matrix.dtype != args.b.matrix.dtype) {
    return "a and b must have one dtype";
  }
  if (args.a.scales.is_wanted() || args.b.scales.is_wanted() ||
      args.a.matrix.dtype == DType::kFloat4E2M1) {
    return "an operand has scales per block";
  }
  return k > kMaxK ? "k is larger than 32768" : nullptr;
}

void gemm_skinny(const GemmArgs& args, const Context& context) {
  gemm_skinny_with(TE_CPU_KERNELS(gemm_skinny_kernels), args, context);
}

void gemm_skinny_with(const GemmSkinnyKernels& kernels, const GemmArgs& args,
                      const Context& context) {
  const auto [m, n, k] = gemm_shape(args);
  GemmSkinnyPrepareArgs prepare;
  prepare.source = args.a.matrix.data;
  prepare.dtype = args.a.matrix.dtype;
  prepare.m = m;
  prepare.k = k;
  prepare.prepared = gemm_workspace(kernels.prepared_bytes(prepare));
  kernels.prepare(prepare);

  GemmSkinnyArgs multiply;
  multiply.a = prepare.prepared;
  multiply.b = args.b.matrix.data;
  multiply.b_dtype = args.b.matrix.dtype;
  multiply.m = m;
  multiply.k = k;
  multiply.finish = gemm_finish(args);
  const int64_t grain = kMultiplyAddsPerThread / (m * (k + 1)) + 1;
  parallel_for(n, grain, context.num_threads, [&](int64_t begin, int64_t end, int /*thread*/) {
    GemmSkinnyArgs part = multiply;
    part.row_begin = begin;
    part.row_end = end;
    kernels.multiply(part);
  });
}

}  // namespace transformer_engine::cpu
