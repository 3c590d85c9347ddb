// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One product by cuBLASLt: D[m, n] = epilogue(alpha * A[m, k] * B[n, k]^T + bias) + beta * D, all
// row-major. cuBLASLt thinks in columns: it computes D^T[n, m] = B * A^T with B as its first
// operand. Descriptors and the algorithm are found once per problem, thread and device; a
// steady-state call sets pointers and launches: no heuristic query, no allocation, no host
// synchronisation.
#pragma once

#include <transformer_engine/gemm.h>

#include "cuda/gemm/cublaslt.h"

namespace transformer_engine::cuda {

// Everything that the descriptors and the choice of the algorithm depend on. Compared as bytes, so
// without padding.
struct MatmulProblem {
  int64_t m = 0, n = 0, k = 0;
  int32_t device = 0;
  int32_t a_type = 0, b_type = 0, d_type = 0;  // cudaDataType_t
  int32_t bias_type = 0;                       // of the bias, where the epilogue has one
  int32_t compute_type = 0;                    // cublasComputeType_t
  int32_t a_scale_mode = 0, b_scale_mode = 0;  // cublasLtMatmulMatrixScale_t
  int32_t epilogue = 0;                        // cublasLtEpilogue_t
  int32_t a_alignment = 0, b_alignment = 0, d_alignment = 0;  // bytes
  uint8_t a_is_transposed = 0, b_is_transposed = 0;
  uint8_t has_scales = 0;        // A and B have scale pointers
  uint8_t has_device_alpha = 0;  // alpha and beta are read from the device
  uint8_t is_accumulating = 0;   // beta is 1
  uint8_t has_aux = 0;           // the value before GELU is stored
  uint8_t has_fast_accumulation = 0;
  uint8_t padding = 0;
};
static_assert(sizeof(MatmulProblem) == 24 + 12 * 4 + 8);

struct MatmulPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;  // [m, n], type of d
  const void* a_scale = nullptr;
  const void* b_scale = nullptr;
  const float* alpha = nullptr;  // device, with has_device_alpha; else 1
  const float* beta = nullptr;   // device, with has_device_alpha
};

// The largest power of two up to 256 that divides the address.
int32_t alignment_of(const void* pointer);

// False where cuBLASLt has no algorithm for the problem (nothing is written then, and it is not
// asked again). Throws RuntimeError with cuBLASLt's words when it fails.
bool run_matmul(const MatmulProblem& problem, const MatmulPointers& pointers,
                const Context& context);

// Descriptors made so far by this thread: for tests of the cache.
size_t cached_matmuls();

}  // namespace transformer_engine::cuda
