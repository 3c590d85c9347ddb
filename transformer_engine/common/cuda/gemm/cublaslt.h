// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuBLASLt that are used, from the library opened at first use: one build imports
// with and without it. Tests put functions of their own in their place.
#pragma once

#include <cublasLt.h>

namespace transformer_engine::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
};

// Why cuBLASLt cannot be used in this process, or null.
const char* cublaslt_refusal();
// Only after cublaslt_refusal() gave null.
const CublasLt& cublaslt();
// major * 10000 + minor * 100 + patch of the library.
size_t cublaslt_version();

// For tests: the functions used from now on, or null for the library's. Not thread-safe.
void replace_cublaslt(const CublasLt* functions);

}  // namespace transformer_engine::cuda
