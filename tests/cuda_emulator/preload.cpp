// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// When the emulated library is loaded: tensors in host memory are device memory, and the stand-in
// for cuBLASLt is in place.
#include "cuda/fake_cublaslt.h"
#include "device_memory.h"

namespace {

const bool is_shared = (cuda_emulator::share_host_memory(), true);
const transformer_engine::testing::FakeCublasLt library;

}  // namespace

// Products so far with fast accumulation, for Python tests.
extern "C" int cuda_emulator_fast_products() {
  return transformer_engine::testing::FakeCublasLt::calls().fast_matmuls;
}
