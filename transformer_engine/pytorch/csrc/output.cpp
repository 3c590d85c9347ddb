// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "allocate.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace py = pybind11;

void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& input) {
  TE_CHECK(tensor.device() == input.device(), op, ": ", name, " is on ", tensor.device().str(),
           ", the input on ", input.device().str(), "; one device is required.");
}

at::Tensor contiguous_operand(const char* op, const char* name, const at::Tensor& tensor,
                              const at::Tensor& input) {
  check_same_device(op, name, tensor, input);
  return tensor.contiguous();
}

at::ScalarType output_dtype(const char* op, const py::object& dtype, const at::Tensor& input) {
  if (dtype.is_none()) {
    return input.scalar_type();
  }
  const auto wanted = static_cast<DType>(py::cast<int>(dtype));
  TE_CHECK_TYPE(is_high_precision(wanted), op, ": otype is ", dtype_name(wanted),
                "; float32, float16 or bfloat16 is required. Pass a quantizer for other formats.");
  return scalar_type_of(wanted);
}

Output::Output(const Request& request, const at::Tensor& input, at::IntArrayRef sizes)
    : given_(request.given), quantizer_(request.quantizer) {
  if (given_.is_none() || !quantizer_.is_none()) {
    tensor_ = new_tensor(sizes, request.dtype, input);
    return;
  }
  tensor_ = py::cast<at::Tensor>(given_);
  check_same_device(request.op, request.name, tensor_, input);
  TE_CHECK(tensor_.sizes() == sizes && tensor_.is_contiguous(), request.op, ": ", request.name,
           " has shape ", tensor_.sizes(), " and strides ", tensor_.strides(),
           "; a contiguous tensor of shape ", sizes, " is required.");
  TE_CHECK_TYPE(tensor_.scalar_type() == request.dtype, request.op, ": ", request.name,
                " has dtype ", at::toString(tensor_.scalar_type()), "; ",
                at::toString(request.dtype), " is required.");
}

TensorView Output::view() const { return matrix_view(tensor_); }

py::object Output::finish() {
  if (quantizer_.is_none()) {
    return given_.is_none() ? py::cast(tensor_) : given_;
  }
  if (given_.is_none()) {
    return quantizer_(tensor_);
  }
  quantizer_.attr("update_quantized")(tensor_, given_);
  return given_;
}

}  // namespace transformer_engine::pytorch
