// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// From the operands of a product to what cuBLASLt can multiply: its own low-precision formats where
// it takes the problem ("native"), else the same values in a high-precision type.
//
// Native formats. Their scales multiply inside the product.
//   per tensor  FP8 (compute capability 8.9 and later) with one FP32 scale per operand; all
//   but 10.x
//               want k as the stored columns of both operands: others are transposed first, which
//               moves 2 bytes an element (a step keeps one copy for all its products)
//   MXFP8       10.0 and later, scales in tiles (swizzle_scales)
//   NVFP4       10.0 and later, scales in tiles; the second-level scales are alpha
//   FP8 blocks  9.0 with cuBLASLt 12.9: k as stored columns and a multiple of 128, blocks of 1 x
//   128
//               on one side at least, scales stored as Float8BlockQuantizer stores them
// Row-scaled NVFP4 and FP8 blocks elsewhere are multiplied in high precision.
#pragma once

#include <transformer_engine/gemm.h>

#include "core/gemm_shape.h"
#include "cuda/gemm/cublaslt.h"

namespace transformer_engine::cuda {

enum class NativeFormat { kNone, kPerTensor, kMxfp8, kNvfp4, kFp8Blocks };

// The native format that takes both operands on a device of this compute capability.
NativeFormat native_format(const GemmArgs& args, int compute_capability);

// Whether an FP8 operand with one scale has to be transposed for this compute capability.
bool needs_transpose(const GemmOperand& operand, int compute_capability);

// How cuBLASLt names the scales of an operand in FP8 blocks.
int32_t block_scale_mode(const GemmOperand& operand);

// Bytes of the tiles of an operand's scales: 512 for 128 rows x 4 blocks of k.
int64_t swizzled_scale_bytes(const GemmOperand& operand, int64_t block);
// Writes them to `tiles`: the scale of (row, block) is byte
// (row / 128 * tiles along k + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
// those beyond the operand are 0. (cuBLAS documentation, "1D block scaling factors layout".)
void swizzle_scales(const GemmOperand& operand, int64_t block, uint8_t* tiles, cudaStream_t stream);

// What multiplies a whole product, from device memory to device memory:
//   out[0] = scale_inv or second-level scale of a, times that of b;  out[1] = 0;  out[2] = 1;
//   out[3], out[4] = the amax that makes the second-level scale of a and of b 1
inline constexpr int kScalars = 5;
void compute_scalars(const GemmArgs& args, float* out, cudaStream_t stream);
// Whether a product of these operands needs out[0].
bool has_alpha(const GemmArgs& args);

// The high-precision type both operands are multiplied in: that of the high-precision one, BF16
// where there is none, if the values of both are exact in it; else FP32.
DType multiplied_type(const GemmArgs& args);
// output = FP32 of a high-precision matrix.
void widen(const TensorView& input, float* output, const Context& context);

// v = value of `sums` (null: 0) + bias; pre_epilogue = v; d = epilogue(v), or d += v.
// sums: [m, n] FP32. One rounding for each output.
void finish_product(const GemmArgs& args, const float* sums, const Context& context);

}  // namespace transformer_engine::cuda
