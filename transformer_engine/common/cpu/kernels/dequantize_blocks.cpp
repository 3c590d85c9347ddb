// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Dequantization of block-scaled rows, for one thread and one instruction set (table:
// cpu/block_kernels.h): y = T(q * scale), for E2M1 T((q * scale) * tensor scale), each product
// rounded to FP32 (RoundedProducts of simd/block_codes.h). Rows that share their scales are passed
// through together, the others one after the other: reads follow each other in memory.
#include "cpu/block_kernels.h"
#include "cpu/simd/block_codes.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

template <typename T>
void dequantize(const DequantizeBlocksArgs& args, int64_t begin, int64_t end) {
  const int64_t cols = args.input.data.cols;
  with_code(args.input.data.dtype, [&](auto code) {
    using Code = typename decltype(code)::Type;
    RoundedProducts<Code, T> expanded;
    dequantize_codes<Code>(args.input, {begin, 0, end - begin, cols}, expanded,
                           static_cast<T*>(args.output.data) + begin * cols, cols);
  });
}

}  // namespace

const BlockDequantizeKernels block_dequantize_kernels = {
    .run = {&dequantize<float>, &dequantize<Bf16>, &dequantize<Fp16>},
};

}  // namespace transformer_engine::cpu::TE_ISA
