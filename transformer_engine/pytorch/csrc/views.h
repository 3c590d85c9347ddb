// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// From torch tensors to the core's plain views.
#pragma once

#include <ATen/core/Tensor.h>
#include <transformer_engine/types.h>

#include <optional>

namespace transformer_engine::pytorch {

// The core's name of a torch dtype, if it has one. uint8 is kByte.
std::optional<DType> find_dtype(at::ScalarType type);
// Throws TypeError for one without a name.
DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(DType dtype);  // FP8 types map to uint8: bytes are what is stored

// [product of leading dimensions, last dimension]; a 0-d tensor is [1, 1]. The tensor must be
// contiguous and outlive the view; an undefined tensor gives an unwanted view. `dtype` overrides
// the element type (FP8 bytes stored as uint8).
TensorView matrix_view(const at::Tensor& tensor);
TensorView matrix_view(const at::Tensor& tensor, DType dtype);
// [1, numel]
TensorView vector_view(const at::Tensor& tensor);

// A [1] (or longer) contiguous FP32 tensor's data, or null for an undefined tensor; ValueError for
// another dtype.
float* float_data(const at::Tensor& tensor, const char* name);

// Device, current stream and thread count for ops on `tensor`.
Context context_for(const at::Tensor& tensor);

}  // namespace transformer_engine::pytorch
