// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The native parts of attention, called by position only.
#include <pybind11/pybind11.h>
#include <transformer_engine/error.h>

#include "bind.h"
#include "steps/attention_part.h"
#include "steps/python_call.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

PyObject* attend_python(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  return translate_exceptions([&]() -> PyObject* {
    TE_CHECK_TYPE(count == 6, "attend() takes 6 arguments but ", count, " were given");
    AttendArgs attend_args;
    static constexpr const char* kNames[] = {"query", "key", "value"};
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor* const tensor =
          are_operators_watched() ? nullptr : native_tensor(args[i], kNames[i]);
      if (tensor == nullptr) {
        return Py_NewRef(Py_None);
      }
      attend_args.operands[i] = *tensor;
    }
    attend_args.is_sbhd = truth(args[3]);
    attend_args.is_causal = truth(args[4]);
    attend_args.scale = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    auto output = attend(attend_args);
    return output.has_value() ? wrap_tensor(std::move(*output)) : Py_NewRef(Py_None);
  });
}

PyObject* split_heads_python(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  return translate_exceptions([&]() -> PyObject* {
    TE_CHECK_TYPE(count == 6 || count == 7, "split_heads() takes 6 or 7 arguments but ", count,
                  " were given");
    const at::Tensor* const mixed =
        are_operators_watched() ? nullptr : native_tensor(args[0], "mixed");
    if (mixed == nullptr) {
      return Py_NewRef(Py_None);
    }
    SplitHeadsArgs split;
    split.mixed = *mixed;
    split.groups = read_integer(args[1]);
    split.size = read_integer(args[2]);
    split.is_interleaved = truth(args[3]);
    split.count = static_cast<size_t>(count) - 4;
    for (size_t i = 0; i < split.count; ++i) {
      split.parts[i] = read_integer(args[4 + i]);
      TE_CHECK(split.parts[i] > 0, "split_heads: part ", i, " is ", split.parts[i],
               "; at least one head per group is required.");
    }
    TE_CHECK(split.groups > 0 && split.size > 0, "split_heads: groups is ", split.groups,
             " and size ", split.size, "; both must be positive.");
    auto results = split_heads(split);
    if (!results.has_value()) {
      return Py_NewRef(Py_None);
    }
    const auto tuple =
        py::reinterpret_steal<py::object>(PyTuple_New(static_cast<Py_ssize_t>(split.count)));
    for (size_t i = 0; tuple && i < split.count; ++i) {
      PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                       wrap_tensor(std::move((*results)[i])));
    }
    if (!tuple) {
      throw py::error_already_set();
    }
    return tuple.inc_ref().ptr();
  });
}

PyMethodDef methods[] = {
    {"attend", as_fast_function(attend_python), METH_FASTCALL,
     "attend(query, key, value, is_sbhd, is_causal, scale)\n--\n\nAttention without mask, bias and "
     "dropout; None where torch would not use its fused CPU kernel."},
    {"split_heads", as_fast_function(split_heads_python), METH_FASTCALL,
     "split_heads(mixed, groups, size, is_interleaved, *parts)\n--\n\nTwo or three parts of "
     "projected heads; None where native code cannot make them."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_attention(py::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
}

}  // namespace transformer_engine::pytorch
