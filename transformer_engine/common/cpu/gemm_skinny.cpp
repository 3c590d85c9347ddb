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

// Rows of A up to which a block-scaled B is faster read per row of A than unpacked once (measured
// on Zen 5, n = k = 4096 MXFP8: equal at 12; at 16 the packed GEMM takes 0.83 of the time).
constexpr int64_t kMaxRowsOfBlocks = 12;

// Scratch of a thread beside its workspace, which holds the prepared A of the calling thread.
void* dequantized_rows(int64_t bytes) {
  thread_local GrowingBuffer buffer;
  return buffer.at_least(bytes);
}

}  // namespace

const char* gemm_skinny_refusal(const GemmArgs& args, const Context& /*context*/) {
  const auto [m, n, k] = gemm_shape(args);
  if (m > TE_CPU_KERNELS(gemm_skinny_kernels).max_rows) {
    return "a has more than 16 rows";
  }
  if (args.a.is_transposed || args.b.is_transposed) {
    return "a and b must be stored with k contiguous";
  }
  if (args.b.scales.is_wanted() && m > kMaxRowsOfBlocks) {
    return "a has more than 12 rows and b scales per block";
  }
  return k > kMaxK ? "k is larger than 32768" : nullptr;
}

void gemm_skinny(const GemmArgs& args, const Context& context) {
  gemm_skinny_with(TE_CPU_KERNELS(gemm_skinny_kernels), args, context);
}

void gemm_skinny_with(const GemmSkinnyKernels& kernels, const GemmArgs& args,
                      const Context& context) {
  const auto [m, n, k] = gemm_shape(args);
  const bool as_pairs =
      kernels.has_bf16_dot && is_exact_in_bf16(args.a) && is_exact_in_bf16(args.b);
  const int64_t row_elements = (k + kSkinnyUnit - 1) / kSkinnyUnit * kSkinnyUnit;
  const int64_t row_bytes = row_elements * (as_pairs ? 2 : 4);
  GemmSkinnyPrepareArgs prepare;
  prepare.matrix = {args.a.matrix, args.a.scales};
  prepare.as_pairs = as_pairs;
  prepare.row_elements = row_elements;
  char* const prepared = static_cast<char*>(gemm_workspace((m + 1) * row_bytes));
  prepare.prepared = prepared;
  prepare.scratch = prepared + m * row_bytes;
  kernels.prepare(prepare);

  GemmSkinnyArgs multiply;
  multiply.a = prepare.prepared;
  multiply.b = {args.b.matrix, args.b.scales};
  multiply.as_pairs = as_pairs;
  multiply.m = m;
  multiply.k = k;
  multiply.row_elements = row_elements;
  multiply.finish = gemm_finish(args);
  const int64_t grain = kMultiplyAddsPerThread / (m * (k + 1)) + 1;
  parallel_for(n, grain, context.num_threads, [&](int64_t begin, int64_t end, int /*thread*/) {
    GemmSkinnyArgs part = multiply;
    part.row_begin = begin;
    part.row_end = end;
    part.scratch = dequantized_rows(args.b.scales.is_wanted() ? kSkinnyRowsAtOnce * row_bytes : 0);
    kernels.multiply(part);
  });
}

}  // namespace transformer_engine::cpu
