// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rotary embeddings, called by position only. Arguments have been checked in Python
// (attention/rope.py); None where native code cannot read the tensors or operators have to be seen
// one by one.
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>
#include <transformer_engine/error.h>
#include <transformer_engine/report.h>

#include "bind.h"
#include "steps/python_call.h"
#include "steps/rope_part.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

// Whether rope runs on the tensor.
bool is_supported(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const bool has_type = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  return has_type && (tensor.is_cpu() || (tensor.is_cuda() && has_cuda_backend()));
}

// A table [positions, 1, 1, width] as FP32, contiguous; false if it cannot be read.
bool read_angles(PyObject* object, at::Tensor* angles) {
  const at::Tensor* const table = native_tensor(object, "freqs");
  if (table == nullptr) {
    return false;
  }
  TE_CHECK(table->dim() == 4 && table->size(1) == 1 && table->size(2) == 1,
           "rope: freqs has shape ", table->sizes(), "; [positions, 1, 1, channels] is required.");
  const bool is_plain = table->scalar_type() == at::kFloat && table->is_contiguous() &&
                        !table->is_neg() && !table->requires_grad();
  *angles = is_plain ? *table : table->detach().to(at::kFloat).contiguous().resolve_neg();
  return true;
}

// Integers on the tensor's device; undefined for None.
bool read_indices(PyObject* object, const at::Tensor& tensor, at::Tensor* indices) {
  if (object == Py_None) {
    return true;
  }
  const at::Tensor* const given = native_tensor(object, "indices");
  if (given == nullptr) {
    return false;
  }
  const bool is_narrow = given->scalar_type() == at::kInt;
  *indices = given->to(tensor.device(), is_narrow ? at::kInt : at::kLong).contiguous();
  return true;
}

HeadsFormat read_format(PyObject* object) {
  const int64_t value = read_integer(object);
  TE_CHECK(value >= 0 && value <= static_cast<int64_t>(HeadsFormat::kThd), "rope: format is ",
           value, "; 0 (sbhd), 1 (bshd) or 2 (thd) is required.");
  return static_cast<HeadsFormat>(value);
}

PyObject* rotate_python(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  return translate_exceptions([&]() -> PyObject* {
    TE_CHECK_TYPE(count == 8, "rotate() takes 8 arguments but ", count, " were given");
    const at::Tensor* const input = are_operators_watched() ? nullptr : native_tensor(args[0], "t");
    RopeSettings settings;
    settings.format = read_format(args[2]);
    settings.is_interleaved = truth(args[3]);
    if (input == nullptr || !is_supported(*input) || !read_angles(args[1], &settings.angles) ||
        !read_indices(args[4], *input, &settings.start_positions) ||
        !read_indices(args[5], *input, &settings.cu_seqlens)) {
      return Py_NewRef(Py_None);
    }
    settings.cp_size = read_integer(args[6]);
    settings.cp_rank = read_integer(args[7]);
    TE_CHECK(input->dim() == (settings.format == HeadsFormat::kThd ? 3 : 4) &&
                 (settings.format == HeadsFormat::kThd) == settings.cu_seqlens.defined(),
             "rope: t has shape ", input->sizes(),
             "; 4 dimensions, or, with cu_seqlens, 3 are required.");
    at::Tensor output;
    {
      const py::gil_scoped_release no_gil;
      output = rotate(*input, settings);
    }
    return wrap_tensor(std::move(output));
  });
}

PyObject* split_and_rotate_python(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  return translate_exceptions([&]() -> PyObject* {
    TE_CHECK_TYPE(count == 11, "split_and_rotate() takes 11 arguments but ", count, " were given");
    const at::Tensor* const mixed =
        are_operators_watched() ? nullptr : native_tensor(args[0], "qkv");
    RopeSettings settings;
    settings.format = read_format(args[6]);
    settings.is_interleaved = truth(args[7]);
    if (mixed == nullptr || !is_supported(*mixed) || !read_angles(args[1], &settings.angles) ||
        !read_angles(args[2], &settings.key_angles) ||
        !read_indices(args[8], *mixed, &settings.start_positions)) {
      return Py_NewRef(Py_None);
    }
    if (args[1] == args[2]) {
      settings.key_angles = settings.angles;
    }
    for (size_t i = 0; i < 3; ++i) {
      settings.widths[i] = read_integer(args[3 + i]);
    }
    const auto& [query, key, value] = settings.widths;
    TE_CHECK(settings.format != HeadsFormat::kThd && mixed->dim() == 4 && key > 0 && query >= 0 &&
                 value >= 0 && query % key == 0 && query + key + value == mixed->size(3),
             "rope: qkv has shape ", mixed->sizes(), " and widths ", query, ", ", key, ", ", value,
             "; 4 dimensions, the last their sum, and a query of whole keys are required.");
    settings.cp_size = read_integer(args[9]);
    settings.cp_rank = read_integer(args[10]);
    std::array<at::Tensor, 3> parts;
    {
      const py::gil_scoped_release no_gil;
      parts = split_and_rotate(*mixed, settings);
    }
    const auto part = [&](size_t i) {
      return py::reinterpret_steal<py::object>(wrap_tensor(std::move(parts[i])));
    };
    return py::make_tuple(part(0), part(1), part(2)).release().ptr();
  });
}

PyMethodDef methods[] = {
    {"rotate", as_fast_function(rotate_python), METH_FASTCALL,
     "rotate(t, freqs, format, is_interleaved, start_positions, cu_seqlens, cp_size, cp_rank)"
     "\n--\n\nt with its channels turned by freqs; format 0 is sbhd, 1 bshd, 2 thd. None where "
     "native code cannot do it."},
    {"split_and_rotate", as_fast_function(split_and_rotate_python), METH_FASTCALL,
     "split_and_rotate(qkv, q_freqs, k_freqs, q, k, v, format, is_interleaved, start_positions, "
     "cp_size, cp_rank)\n--\n\n(query, key, value) of groups of q, k and v channels, query and key "
     "turned. None where native code cannot do it."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_rope(py::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
}

}  // namespace transformer_engine::pytorch
