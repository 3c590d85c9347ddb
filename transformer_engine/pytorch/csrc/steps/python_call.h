// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reading a Python call and a module's attributes with the C API: what a step does before it
// computes. The GIL is held.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <array>
#include <optional>
#include <string>

namespace transformer_engine::pytorch {

// An attribute or parameter name: interned, so that dictionary look-ups compare pointers.
class Name {
 public:
  Name(const char* text)
      : object_(PyUnicode_InternFromString(text)),
        text_(text) {}                                   // NOLINT: names are written as literals
  Name(const std::string& text) : Name(text.c_str()) {}  // NOLINT
  PyObject* object() const { return object_; }
  const std::string& text() const { return text_; }

 private:
  PyObject* object_;  // interned for the life of the process
  std::string text_;
};

// Assigns positional and keyword arguments to `names`; unset ones stay null (borrowed references).
// TypeError as Python words it for a missing first argument, an unknown keyword, a repeated or a
// superfluous argument.
void parse_arguments(const char* function, PyObject* args, PyObject* kwargs, const Name* names,
                     PyObject** values, size_t count);

template <size_t N>
std::array<PyObject*, N> parse_arguments(const char* function, PyObject* args, PyObject* kwargs,
                                         const std::array<Name, N>& names) {
  std::array<PyObject*, N> values{};
  parse_arguments(function, args, kwargs, names.data(), values.data(), N);
  return values;
}

bool truth(PyObject* value);                          // null and None are false
std::optional<bool> optional_truth(PyObject* value);  // null and None are empty

// Thrown when a step meets a tensor it cannot read natively; nothing is changed by then. The module
// then runs its composed forward (module/composed.py). `reason` reads "inp is a FakeTensor".
struct NeedsComposedForward {
  std::string reason;
};

// Throws NeedsComposedForward for anything but a strided CPU or CUDA tensor with data of its own
// (perhaps to be negated) or a quantized tensor: another layout or device, a wrapper of a transform
// (vmap, grad, fake tensors, DTensor), a forward-mode tangent, a class that overrides torch
// functions.
void require_native(const at::Tensor& tensor, PyObject* object, const std::string& name);

// Whether something watches or transforms operators, which then have to be seen one by one.
bool are_operators_watched();
// The tensor, where native code can read it; null for what is none, for quantized tensors too.
const at::Tensor* native_tensor(PyObject* object, const char* name);

int64_t read_integer(PyObject* object);  // TypeError, OverflowError as Python's

// A function that takes its arguments by position only, for PyMethodDef: pybind11's own parsing
// would cost as much as half of what such functions save.
PyCFunction as_fast_function(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t));

// The module's parameter (or buffer, or attribute: a parametrized weight is one) of that name;
// undefined for None. AttributeError, in the name of the forward called `label`, when there is
// none, TypeError when it is no tensor, NeedsComposedForward when native code cannot read it.
at::Tensor read_tensor(PyObject* module, const Name& name, const std::string& label);
// An instance attribute, borrowed, or null when there is none.
PyObject* find_attribute(PyObject* module, const Name& name);

// The tensor behind `value`; TypeError naming `what` otherwise.
const at::Tensor& unpack_tensor(PyObject* value, const char* what);
// The tensor given for `argument` of the forward called `label`; TypeError naming both otherwise,
// NeedsComposedForward when native code cannot read it.
const at::Tensor& unpack_input(PyObject* value, const std::string& label, const char* argument);
PyObject* wrap_tensor(at::Tensor tensor);  // new reference

template <typename Body>
auto with_gil(const Body& body) {
  const pybind11::gil_scoped_acquire gil;
  return body();
}

bool has_tangent(const at::Tensor& tensor);  // of forward-mode AD

// A tensor whose class overrides dispatch in Python (a quantized tensor, a DTensor, ...).
bool is_python_tensor(const at::Tensor& tensor);

// Runs `body` and turns C++ exceptions into Python ones (null result).
PyObject* translate_exceptions_of(PyObject* (*body)(void*), void* argument);

template <typename Body>
PyObject* translate_exceptions(Body&& body) {
  return translate_exceptions_of(
      [](void* argument) -> PyObject* { return (*static_cast<Body*>(argument))(); }, &body);
}

}  // namespace transformer_engine::pytorch
