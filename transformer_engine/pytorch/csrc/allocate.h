// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace transformer_engine::pytorch {

// An uninitialised contiguous tensor without gradient, on the device of `like`.
//
// The system allocator returns large blocks to the kernel, so a fresh result of 32 MiB costs 8192
// page faults: 13 ms on a machine that copies it in 1.4 ms. Asking for huge pages before the first
// write makes that 16 faults. Small tensors come from memory that is mapped already.
at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like);

}  // namespace transformer_engine::pytorch
