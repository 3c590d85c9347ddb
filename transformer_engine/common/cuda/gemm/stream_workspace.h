// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace transformer_engine::cuda {

bool is_capturing(cudaStream_t stream);

// Device memory for the library calls of one stream, which run one after another and so may share
// it. Allocated at the stream's first call and kept. Not for a stream that is capturing.
void* stream_workspace(int device, cudaStream_t stream, size_t bytes);

}  // namespace transformer_engine::cuda
