// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include <torch/csrc/autograd/python_variable.h>

#include "quantizer.h"
#include "steps/python_call.h"
#include "steps/read_operand.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

// Values for a GEMM from a quantized object of a class of the user's: what it dequantizes to.
Operand dequantized_operand(py::handle quantized, const at::Tensor& input,
                            const std::string& label) {
  const py::object plain = THPVariable_CheckExact(quantized.ptr())
                               ? py::reinterpret_borrow<py::object>(quantized)
                               : py::object(quantized.attr("dequantize")());
  const at::Tensor& values = unpack_tensor(plain.ptr(), "dequantize()");
  TE_CHECK(values.sizes() == input.sizes(), label, ": the result dequantizes to shape ",
           values.sizes(), "; ", input.sizes(), ", the shape of the tensor, is required.");
  TE_CHECK(values.device() == input.device(), label, ": the result is on ", values.device().str(),
           "; ", input.device().str(), " is required, where the tensor is.");
  const at::ScalarType dtype = input.scalar_type();
  return Operand::high_precision(
      (values.scalar_type() == dtype ? values : values.to(dtype)).detach().contiguous());
}

}  // namespace

Operand PythonQuantizer::quantize(const at::Tensor& input, const Usages& usages) {
  const py::gil_scoped_acquire gil;
  const py::handle quantizer(quantizer_.get());
  const std::string label = concat(Py_TYPE(quantizer.ptr())->tp_name, ".quantize");
  quantizer.attr("set_usage")(py::arg("rowwise") = usages.rowwise,
                              py::arg("columnwise") = usages.columnwise);
  const py::object result = quantizer.attr("quantize_impl")(input);
  if (!py::hasattr(result, "_native_operand")) {
    return dequantized_operand(result, input, label);
  }
  Operand operand = read_operand(result, input.sizes(), input.device(), {label, "the result"});
  operand.convert_plain_copies(input.scalar_type());
  return operand;
}

bool PythonQuantizer::is_requantization_safe() const {
  const py::gil_scoped_acquire gil;
  return truth(py::object(py::handle(quantizer_.get()).attr("is_requantization_safe")()).ptr());
}

void PythonQuantizer::calibrate(const at::Tensor& input) {
  const py::gil_scoped_acquire gil;
  py::handle(quantizer_.get()).attr("calibrate")(input);
}

}  // namespace transformer_engine::pytorch
