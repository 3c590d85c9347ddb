// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Functions of the extension that may quantize their result: where the result goes and what the
// caller gets back.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <transformer_engine/types.h>

namespace transformer_engine::pytorch {

void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& input);

// The operand as contiguous memory on the input's device.
at::Tensor contiguous_operand(const char* op, const char* name, const at::Tensor& tensor,
                              const at::Tensor& input);

// The result of one call. Without a quantizer: the given tensor, or a new one. With a quantizer: a
// new tensor that finish() hands to it; the given tensor is then its quantized destination.
class Output {
 public:
  struct Request {
    const char* op;
    const char* name;            // of the argument `given`
    pybind11::object given;      // torch.Tensor, quantized tensor or None
    pybind11::object quantizer;  // Python quantizer or None
    at::ScalarType dtype;
  };
  Output(const Request& request, const at::Tensor& input, at::IntArrayRef sizes);

  TensorView view() const;
  // After the computation: what the caller gets.
  pybind11::object finish();

 private:
  pybind11::object given_;
  pybind11::object quantizer_;
  at::Tensor tensor_;
};

// torch dtype for a value of DType; None gives the input's.
at::ScalarType output_dtype(const char* op, const pybind11::object& dtype, const at::Tensor& input);

}  // namespace transformer_engine::pytorch
