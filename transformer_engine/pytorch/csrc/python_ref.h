// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <utility>

namespace transformer_engine::pytorch {

// A reference to a Python object that may be dropped on any thread, with or without the GIL.
class PythonRef {
 public:
  PythonRef() = default;
  // Takes its own reference; the GIL must be held.
  explicit PythonRef(PyObject* object) : object_(object) { Py_XINCREF(object_); }
  PythonRef(const PythonRef&) = delete;
  PythonRef& operator=(const PythonRef&) = delete;
  PythonRef(PythonRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PythonRef& operator=(PythonRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~PythonRef() {
    if (object_ != nullptr && Py_IsInitialized() != 0) {
      const PyGILState_STATE gil = PyGILState_Ensure();
      Py_DECREF(object_);
      PyGILState_Release(gil);
    }
  }
  PyObject* get() const { return object_; }  // borrowed; may be null

 private:
  PyObject* object_ = nullptr;
};

}  // namespace transformer_engine::pytorch
