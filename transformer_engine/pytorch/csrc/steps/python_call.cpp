// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/python_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <transformer_engine/error.h>

namespace py = pybind11;

namespace transformer_engine::pytorch {

void parse_arguments(const char* function, PyObject* args, PyObject* kwargs, const Name* names,
                     PyObject** values, size_t count) {
  const auto given = static_cast<size_t>(PyTuple_GET_SIZE(args));
  TE_CHECK_TYPE(given <= count, function, "() takes ", count, " arguments but ", given,
                " were given");
  for (size_t i = 0; i < given; ++i) {
    values[i] = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i));
  }
  if (kwargs != nullptr) {
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &value) != 0) {
      size_t i = 0;
      while (i < count && key != names[i].object()) {
        ++i;
      }
      for (size_t j = 0; i == count && j < count; ++j) {  // a keyword that is not interned
        i = PyUnicode_Compare(key, names[j].object()) == 0 ? j : i;
      }
      TE_CHECK_TYPE(i < count, function, "() got an unexpected keyword argument '",
                    py::handle(key).cast<std::string>(), "'");
      TE_CHECK_TYPE(values[i] == nullptr, function, "() got multiple values for argument '",
                    names[i].text(), "'");
      values[i] = value;
    }
  }
  TE_CHECK_TYPE(values[0] != nullptr, function, "() missing 1 required positional argument: '",
                names[0].text(), "'");
}

bool truth(PyObject* value) {
  if (value == nullptr || value == Py_None || value == Py_False) {
    return false;
  }
  if (value == Py_True) {
    return true;
  }
  const int result = PyObject_IsTrue(value);
  if (result < 0) {
    throw py::error_already_set();
  }
  return result != 0;
}

std::optional<bool> optional_truth(PyObject* value) {
  if (value == nullptr || value == Py_None) {
    return std::nullopt;
  }
  return truth(value);
}

PyObject* find_attribute(PyObject* module, const Name& name) {
  PyObject** const dict = _PyObject_GetDictPtr(module);
  return dict != nullptr && *dict != nullptr ? PyDict_GetItemWithError(*dict, name.object())
                                             : nullptr;
}

namespace {

// What a tensor that native code may read can have in its key set.
uint64_t native_keys() {
  static const uint64_t keys =
      (c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) |
       c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
       c10::DispatchKeySet({c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA,
                            c10::DispatchKey::Negative}))
          .raw_repr();
  return keys;
}

// Whether torch's functions would ask the class of `object` instead of running.
bool overrides_torch_functions(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (THPVariable_CheckTypeExact(type)) [[likely]] {
    return false;
  }
  static const Name torch_function("__torch_function__");
  static PyObject* const disabled =
      py::object(py::module_::import("torch._C").attr("_disabled_torch_function_impl"))
          .release()
          .ptr();
  PyObject* const function = _PyType_Lookup(type, torch_function.object());
  return function != nullptr && function != disabled;
}

// A class of our quantized tensors: native code reads their parts.
bool is_quantized_type(PyTypeObject* type) {
  static const Name native_operand("_native_operand");
  return _PyType_Lookup(type, native_operand.object()) != nullptr;
}

}  // namespace

void require_native(const at::Tensor& tensor, PyObject* object, const std::string& name) {
  const uint64_t keys = tensor.key_set().raw_repr();
  const bool is_plain = (keys & ~native_keys()) == 0;
  if (is_plain && !has_tangent(tensor) && !overrides_torch_functions(object)) [[likely]] {
    return;
  }
  if (is_quantized_type(Py_TYPE(object)) && !has_tangent(tensor)) {
    return;
  }
  const bool has_own_class = !THPVariable_CheckTypeExact(Py_TYPE(object));
  throw NeedsComposedForward{concat(
      name, has_own_class                           ? concat(" is a ", Py_TYPE(object)->tp_name)
            : has_tangent(tensor)                   ? std::string(" has a forward-mode tangent")
            : tensor.is_meta()                      ? std::string(" is on meta")
            : !tensor.is_cpu() && !tensor.is_cuda() ? concat(" is on ", tensor.device().str())
            : tensor.layout() != at::kStrided       ? concat(" has layout ", tensor.layout())
                                                    : std::string(" is a wrapper of a transform"))};
}

bool are_operators_watched() {
  constexpr c10::DispatchKeySet kWatchers({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                           c10::DispatchKey::Tracer, c10::DispatchKey::Python});
  return c10::impl::tls_local_dispatch_key_set().included_.has_any(kWatchers);
}

const at::Tensor* native_tensor(PyObject* object, const char* name) {
  if (!THPVariable_Check(object)) {
    return nullptr;
  }
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (is_python_tensor(tensor)) {
    return nullptr;
  }
  try {
    require_native(tensor, object, name);
  } catch (const NeedsComposedForward&) {
    return nullptr;
  }
  return &tensor;
}

int64_t read_integer(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

PyCFunction as_fast_function(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

at::Tensor read_tensor(PyObject* module, const Name& name, const std::string& label) {
  static const Name parameters("_parameters");
  PyObject* const dict = find_attribute(module, parameters);
  PyObject* value = dict != nullptr ? PyDict_GetItemWithError(dict, name.object()) : nullptr;
  py::object keep_alive;
  if (value == nullptr) {
    keep_alive = py::reinterpret_steal<py::object>(PyObject_GetAttr(module, name.object()));
    if (!keep_alive) {
      // A property of the class that raises speaks for itself.
      if (PyErr_ExceptionMatches(PyExc_AttributeError) != 0 &&
          _PyType_Lookup(Py_TYPE(module), name.object()) == nullptr) {
        py::set_error(PyExc_AttributeError,
                      concat(label, ": parameter ", name.text(),
                             " is missing; a tensor is required. Register it again with "
                             "register_parameter.")
                          .c_str());
      }
      throw py::error_already_set();
    }
    value = keep_alive.ptr();
  }
  if (value == Py_None) {
    return {};
  }
  const at::Tensor& tensor = unpack_tensor(value, name.text().c_str());
  require_native(tensor, value, name.text());
  if (tensor.is_neg()) [[unlikely]] {  // as_plain() resolves it in inputs; parameters are read bare
    throw NeedsComposedForward{concat(name.text(), " has its negative bit set")};
  }
  return tensor;
}

const at::Tensor& unpack_tensor(PyObject* value, const char* what) {
  TE_CHECK_TYPE(THPVariable_Check(value), what, " has type ", Py_TYPE(value)->tp_name,
                "; a tensor is required.");
  return THPVariable_Unpack(value);
}

const at::Tensor& unpack_input(PyObject* value, const std::string& label, const char* argument) {
  if (!THPVariable_Check(value)) {
    throw TypeError(concat(label, ": ", argument, " has type ", Py_TYPE(value)->tp_name,
                           "; a tensor is required."));
  }
  const at::Tensor& tensor = THPVariable_Unpack(value);
  require_native(tensor, value, argument);
  return tensor;
}

PyObject* wrap_tensor(at::Tensor tensor) {
  PyObject* const result = THPVariable_Wrap(std::move(tensor));
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return result;
}

bool has_tangent(const at::Tensor& tensor) {
  c10::AutogradMetaInterface* const meta = tensor.unsafeGetTensorImpl()->autograd_meta();
  return meta != nullptr && tensor._fw_grad(/*level=*/0).defined();
}

bool is_python_tensor(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

PyObject* translate_exceptions_of(PyObject* (*body)(void*), void* argument) {
  HANDLE_TH_ERRORS
  try {
    return body(argument);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const NotImplementedError& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const RuntimeError& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
  END_HANDLE_TH_ERRORS
}

}  // namespace transformer_engine::pytorch
