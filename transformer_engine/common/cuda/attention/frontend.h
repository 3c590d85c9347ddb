// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cudnn-frontend (header-only, MIT licence), made to take cuDNN's functions from cudnn_function(),
// and the few of the CUDA runtime from the one this library is linked with: its own loader would
// open a second runtime by name, and refuses where it finds two. Costs 15 s of compilation, so one
// file includes it. That file hides its symbols: other libraries of the process may contain other
// versions of the same templates.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>

#include "cuda/attention/cudnn.h"
#include "cuda/runtime.h"

namespace transformer_engine::cuda {

// All that is asked of the properties.
inline cudaError_t frontend_device_properties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  properties->major = compute_capability(device) / 10;
  properties->minor = compute_capability(device) % 10;
  return cudaSuccess;
}

// What the frontend's loader gets for a library: something for one CUDA runtime.
inline void* frontend_library(const char* name) {
  static char runtime = 0;
  return std::strcmp(name, "libcudart.so.12") == 0 ? &runtime : nullptr;
}

inline void* frontend_function(void* library, const char* name) {
  if (library == nullptr) {  // cuDNN: cudnn_frontend::cudnn_dlhandle
    return cudnn_function(name);
  }
  const struct {
    const char* name;
    void* function;
  } functions[] = {
      {"cudaGetDevice", reinterpret_cast<void*>(&cudaGetDevice)},
      {"cudaGetDeviceProperties", reinterpret_cast<void*>(&frontend_device_properties)},
      {"cudaGetDeviceProperties_v2", reinterpret_cast<void*>(&frontend_device_properties)},
      {"cudaGetErrorString", reinterpret_cast<void*>(&cudaGetErrorString)},
  };
  for (const auto& known : functions) {
    if (std::strcmp(name, known.name) == 0) {
      return known.function;
    }
  }
  return nullptr;
}

}  // namespace transformer_engine::cuda

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define dlopen(name, flags) ::transformer_engine::cuda::frontend_library(name)
#define dlsym(library, name) ::transformer_engine::cuda::frontend_function(library, name)
#define dlerror() static_cast<const char*>(nullptr)
#include <cudnn_frontend.h>
#undef dlopen
#undef dlsym
#undef dlerror
