// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/cublaslt.h"

#include <dlfcn.h>

namespace transformer_engine::cuda {

namespace {

constexpr size_t kOldest = 120800;  // the first with scales per block
constexpr char kMissing[] =
    "libcublasLt.so.13 and .12 are not found by the dynamic loader. Install a CUDA build of the "
    "framework or cuBLAS, or set LD_LIBRARY_PATH";
constexpr char kTooOld[] = "the cuBLASLt found is older than 12.8. Install a newer one";

const CublasLt* replacement = nullptr;

struct Library {
  CublasLt functions;
  const char* refusal = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Library open_library() {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      break;
    }
  }
  Library opened;
  if (library == nullptr) {
    opened.refusal = kMissing;
    return opened;
  }
  CublasLt& f = opened.functions;
  const bool has_all = find(library, "cublasLtCreate", f.create) &&
                       find(library, "cublasLtGetVersion", f.version) &&
                       find(library, "cublasLtGetStatusString", f.status_string) &&
                       find(library, "cublasLtMatmulDescInit_internal", f.init_operation) &&
                       find(library, "cublasLtMatmulDescSetAttribute", f.set_operation) &&
                       find(library, "cublasLtMatrixLayoutInit_internal", f.init_layout) &&
                       find(library, "cublasLtMatmulPreferenceInit_internal", f.init_preference) &&
                       find(library, "cublasLtMatmulPreferenceSetAttribute", f.set_preference) &&
                       find(library, "cublasLtMatmulAlgoGetHeuristic", f.find_algorithm) &&
                       find(library, "cublasLtMatmul", f.matmul);
  opened.refusal = !has_all || f.version() < kOldest ? kTooOld : nullptr;
  return opened;
}

const Library& library() {
  static const Library opened = open_library();
  return opened;
}

}  // namespace

const char* cublaslt_refusal() { return replacement != nullptr ? nullptr : library().refusal; }
const CublasLt& cublaslt() { return replacement != nullptr ? *replacement : library().functions; }
size_t cublaslt_version() { return cublaslt().version(); }
void replace_cublaslt(const CublasLt* functions) { replacement = functions; }

}  // namespace transformer_engine::cuda
