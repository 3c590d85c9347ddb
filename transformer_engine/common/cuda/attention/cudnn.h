// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cuDNN, opened at first use: one build imports with and without it. The functions are called by
// cudnn-frontend, which asks for them by name. Tests put functions of their own in their place.
#pragma once

#include <cstddef>

namespace transformer_engine::cuda {

// Why cuDNN cannot be used in this process, or null.
const char* cudnn_refusal();
// major * 10000 + minor * 100 + patch of the library. Only after cudnn_refusal() gave null.
size_t cudnn_version();
// A function of the library, or null where it has none of that name.
void* cudnn_function(const char* name);

// For tests: what cudnn_function() answers from now on, or null for the library's functions. Not
// thread-safe, and not to be changed to another non-null one: the frontend keeps what it got.
void replace_cudnn(void* (*find)(const char* name));

}  // namespace transformer_engine::cuda
