// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/cudnn.h"

#include <dlfcn.h>

namespace transformer_engine::cuda {

namespace {

constexpr size_t kOldest = 90700;  // the first for compute capability 10.0
constexpr size_t kBeyond = 100000;
constexpr char kMissing[] =
    "libcudnn.so.9 is not found by the dynamic loader. Install a CUDA build of the framework or "
    "cuDNN, or set LD_LIBRARY_PATH";
constexpr char kOtherVersion[] =
    "the cuDNN found is older than 9.7, or of another major version. Install a newer 9.x";
constexpr char kFaulty[] =
    "cuDNN 9.10.0 and 9.10.1 have known faults in attention. Install 9.10.2 or later";

void* (*replacement)(const char* name) = nullptr;

void* open_library() { return dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL); }

const char* refusal_of_version() {
  const size_t version = cudnn_function("cudnnGetVersion") == nullptr ? 0 : cudnn_version();
  if (version < kOldest || version >= kBeyond) {
    return kOtherVersion;
  }
  return version == 91000 || version == 91001 ? kFaulty : nullptr;
}

void* library() {
  static void* const opened = open_library();
  return opened;
}

}  // namespace

const char* cudnn_refusal() {
  if (replacement != nullptr) {
    return refusal_of_version();
  }
  static const char* const refusal = library() == nullptr ? kMissing : refusal_of_version();
  return refusal;
}

size_t cudnn_version() {
  return reinterpret_cast<size_t (*)()>(cudnn_function("cudnnGetVersion"))();
}

void* cudnn_function(const char* name) {
  if (replacement != nullptr) {
    return replacement(name);
  }
  return library() == nullptr ? nullptr : dlsym(library(), name);
}

void replace_cudnn(void* (*find)(const char* name)) { replacement = find; }

}  // namespace transformer_engine::cuda
