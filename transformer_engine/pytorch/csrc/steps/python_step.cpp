// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/python_step.h"

#include <ATen/SequenceNumber.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

namespace py = pybind11;

namespace transformer_engine::pytorch {

at::Tensor QuantizedCall::forward_scales() const {
  return state_.has_scales() ? transformer_engine::pytorch::forward_scales(state_) : at::Tensor();
}

std::vector<std::shared_ptr<Quantizer>> QuantizedCall::forward_quantizers() const {
  return state_.quantizers == nullptr ? std::vector<std::shared_ptr<Quantizer>>{}
                                      : state_.quantizers->forward;
}

std::vector<std::shared_ptr<Quantizer>> QuantizedCall::backward_quantizers() const {
  return state_.quantizers == nullptr ? std::vector<std::shared_ptr<Quantizer>>{}
                                      : state_.quantizers->backward;
}

namespace {

// Whether any tensor among the objects requires a gradient; tuples are looked into.
bool any_requires_grad(PyObject* objects) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(objects); ++i) {
    PyObject* const object = PyTuple_GET_ITEM(objects, i);
    if (PyTuple_Check(object)
            ? any_requires_grad(object)
            : THPVariable_Check(object) && THPVariable_Unpack(object).requires_grad()) {
      return true;
    }
  }
  return false;
}

}  // namespace

PyObject* PythonStep::forward(PyObject* module, PyObject* args, PyObject* kwargs) {
  static const Name method_name("_quantized_forward");
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  TE_CHECK_TYPE(count > 0, name(), ": no argument is given; a tensor is required.");
  CallState state = begin_forward(
      module, unpack_input(PyTuple_GET_ITEM(args, 0), name(), "argument 1").scalar_type());
  const auto method =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(module, method_name.object()));
  if (!method) {
    throw py::error_already_set();
  }
  py::tuple with_call(count + 1);
  with_call[0] = py::cast(QuantizedCall(state));
  for (Py_ssize_t i = 0; i < count; ++i) {
    with_call[static_cast<size_t>(i) + 1] =
        py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(args, i));
  }
  const uint64_t first_node = at::sequence_number::peek();
  py::object result;
  {
    const ReplayScales replay(state);
    result =
        py::reinterpret_steal<py::object>(PyObject_Call(method.ptr(), with_call.ptr(), kwargs));
  }
  if (!result) {
    throw py::error_already_set();
  }
  const py::tuple results =
      PyTuple_Check(result.ptr()) ? py::tuple(result) : py::make_tuple(result);
  end_forward(state, any_requires_grad(results.ptr()), any_requires_grad(args), first_node);
  return result.release().ptr();
}

}  // namespace transformer_engine::pytorch
