// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Puts the stand-in for cuBLASLt in place when the emulated library is loaded.
#include "cuda/fake_cublaslt.h"

namespace {

const transformer_engine::testing::FakeCublasLt library;

}  // namespace
