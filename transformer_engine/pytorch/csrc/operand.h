// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <transformer_engine/gemm.h>

#include "views.h"

namespace transformer_engine::pytorch {

// What a GEMM reads: a high-precision tensor, or bytes with their scales. A plain value; steps move
// it around without asking which format it has.
struct Operand {
  at::Tensor data;                // [..., cols]: FP32/BF16/FP16, or uint8 holding FP8
  at::Tensor scale_inv;           // [1] FP32 when quantized, else undefined
  DType dtype = DType::kFloat32;  // element type of `data`

  static Operand high_precision(at::Tensor tensor) {
    const DType dtype = dtype_of(tensor.scalar_type());
    return {std::move(tensor), {}, dtype};
  }
  bool is_defined() const { return data.defined(); }
  bool is_quantized() const { return scale_inv.defined(); }

  GemmOperand gemm_operand(bool is_transposed) const {
    GemmOperand operand;
    operand.matrix = matrix_view(data, dtype);
    operand.is_transposed = is_transposed;
    if (is_quantized()) {
      operand.matrix.framework_tensor = nullptr;  // bytes mean nothing to the framework's GEMM
      operand.scale_inv = static_cast<const float*>(scale_inv.data_ptr());
    }
    return operand;
  }
};

}  // namespace transformer_engine::pytorch
