// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for cuBLASLt that computes on the host, in FP64, what the descriptors say, by columns
// as cuBLASLt does, and refuses what NVIDIA's documentation does not list as supported. It records
// how often it is asked.
#pragma once

#include "cuda/gemm/cublaslt.h"

namespace transformer_engine::testing {

struct CublasLtCalls {
  int heuristics = 0;
  int matmuls = 0;
  int fast_matmuls = 0;  // with fast accumulation
  int refusals = 0;
  // Of the last product.
  int32_t a_type = 0, b_type = 0, d_type = 0, epilogue = 0, scale_mode = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;  // that algorithms may have
  // Set by tests: the answer where a problem is not supported, and a type of A that never is.
  cublasStatus_t refusal = CUBLAS_STATUS_NOT_SUPPORTED;
  int32_t refused_type = -1;
};

// While it lives, the CUDA backend calls the stand-in.
class FakeCublasLt {
 public:
  FakeCublasLt();
  ~FakeCublasLt();
  FakeCublasLt(const FakeCublasLt&) = delete;
  FakeCublasLt& operator=(const FakeCublasLt&) = delete;

  static CublasLtCalls& calls();
};

}  // namespace transformer_engine::testing
