// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// When the emulated library is loaded: tensors in host memory are device memory, and the stand-ins
// for cuBLASLt and cuDNN are in place.
#include "cuda/fake_cublaslt.h"
#if defined(TE_FAKE_CUDNN)
#include "cuda/fake_cudnn.h"
#endif
#include "device_memory.h"

namespace {

const bool is_shared = (cuda_emulator::share_host_memory(), true);
const transformer_engine::testing::FakeCublasLt library;
#if defined(TE_FAKE_CUDNN)
const transformer_engine::testing::FakeCudnn cudnn;
#endif

}  // namespace

// Products so far with fast accumulation, for Python tests.
extern "C" int cuda_emulator_fast_products() {
  return transformer_engine::testing::FakeCublasLt::calls().fast_matmuls;
}
