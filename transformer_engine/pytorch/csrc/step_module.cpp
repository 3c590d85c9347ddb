// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "step_module.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <transformer_engine/error.h>

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

struct StepModuleObject {
  PyObject_HEAD PyObject* step;  // the Python wrapper of `native`, or null before the first forward
  Step* native;
};

// Interned names and torch's own objects, looked up once.
struct Names {
  PyObject* forward = PyUnicode_InternFromString("forward");
  PyObject* make_step = PyUnicode_InternFromString("_make_step");
  PyObject* compiled_call = PyUnicode_InternFromString("_compiled_call_impl");
  std::array<PyObject*, 4> hooks = {PyUnicode_InternFromString("_backward_hooks"),
                                    PyUnicode_InternFromString("_backward_pre_hooks"),
                                    PyUnicode_InternFromString("_forward_hooks"),
                                    PyUnicode_InternFromString("_forward_pre_hooks")};
  std::array<PyObject*, 4> global_hooks{};
  PyObject* call_impl = PyUnicode_InternFromString("_call_impl");
  PyObject* call = PyUnicode_InternFromString("__call__");
  PyTypeObject* module_type = nullptr;  // torch.nn.Module
  PyObject* original_call = nullptr;    // its __call__ when this library was imported
  PyObject* original_call_impl = nullptr;
  PyTypeObject* step_module_type = nullptr;
  // Functions that do nothing but call the step: a class whose `forward` is one of them may skip
  // it.
  std::vector<PyObject*> native_forwards;
};

Names& names() {
  static auto* const instance = [] {
    auto* made = new Names;
    const py::module_ module = py::module_::import("torch.nn.modules.module");
    const char* const globals[] = {"_global_backward_pre_hooks", "_global_backward_hooks",
                                   "_global_forward_hooks", "_global_forward_pre_hooks"};
    for (size_t i = 0; i < made->global_hooks.size(); ++i) {
      made->global_hooks[i] = py::object(module.attr(globals[i])).release().ptr();
    }
    made->module_type =
        reinterpret_cast<PyTypeObject*>(py::object(module.attr("Module")).release().ptr());
    made->original_call = Py_XNewRef(_PyType_Lookup(made->module_type, made->call));
    made->original_call_impl = Py_XNewRef(_PyType_Lookup(made->module_type, made->call_impl));
    return made;
  }();
  return *instance;
}

bool is_empty_mapping(PyObject* object) {
  return object != nullptr && PyDict_Check(object) && PyDict_GET_SIZE(object) == 0;
}

// True when calling `self` means exactly: call its class's forward.
bool calls_forward_only(PyObject* self, PyObject* attributes) {
  const Names& known = names();
  if (_PyType_Lookup(known.module_type, known.call) != known.original_call) [[unlikely]] {
    return false;  // a tracer has put its own call there
  }
  for (PyObject* const name : known.hooks) {
    if (!is_empty_mapping(PyDict_GetItemWithError(attributes, name))) {
      return false;
    }
  }
  for (PyObject* const hooks : known.global_hooks) {
    if (PyDict_GET_SIZE(hooks) != 0) {
      return false;
    }
  }
  if (_PyType_Lookup(Py_TYPE(self), known.call_impl) != known.original_call_impl ||
      PyDict_GetItemWithError(attributes, known.call_impl) != nullptr ||
      PyDict_GetItemWithError(attributes, known.compiled_call) != nullptr ||
      PyDict_GetItemWithError(attributes, known.forward) != nullptr) {
    return false;
  }
  // torch.jit.trace names scopes in nn.Module's call.
  return !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
}

// Only a StepModule has a step: another class may have borrowed the function.
bool runs_step(PyObject* self, PyObject* forward) {
  const auto& native = names().native_forwards;
  return std::find(native.begin(), native.end(), forward) != native.end() &&
         PyObject_TypeCheck(self, names().step_module_type) != 0;
}

// Borrowed reference to the instance dictionary.
PyObject* instance_dict(PyObject* self) {
  PyObject** const slot = _PyObject_GetDictPtr(self);
  if (slot != nullptr && *slot != nullptr) {
    return *slot;
  }
  PyObject* const made = PyObject_GenericGetDict(self, nullptr);  // materialises it
  Py_XDECREF(made);                                               // the instance keeps it alive
  return made;
}

PyObject* run_step(StepModuleObject* self, PyObject* args, PyObject* kwargs) {
  auto* const module = reinterpret_cast<PyObject*>(self);
  if (self->native == nullptr) {
    PyObject* const made = PyObject_CallMethodNoArgs(module, names().make_step);
    if (made == nullptr || PyObject_SetAttrString(module, "_step", made) != 0) {
      Py_XDECREF(made);
      return nullptr;
    }
    Py_DECREF(made);
  }
  PyObject* const keep_alive = self->step;  // a forward may replace its own step
  Py_INCREF(keep_alive);
  PyObject* const result = self->native->call(module, args, kwargs);
  Py_DECREF(keep_alive);
  return result;
}

// function(self, *args, **kwargs)
PyObject* call_with_self(PyObject* function, PyObject* self, PyObject* args, PyObject* kwargs) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  PyObject* const with_self = PyTuple_New(count + 1);
  if (with_self == nullptr) {
    return nullptr;
  }
  PyTuple_SET_ITEM(with_self, 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(with_self, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
  }
  PyObject* const result = PyObject_Call(function, with_self, kwargs);
  Py_DECREF(with_self);
  return result;
}

PyObject* module_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const attributes = instance_dict(self);
  if (attributes == nullptr) {
    return nullptr;
  }
  if (calls_forward_only(self, attributes)) {
    PyObject* const forward = _PyType_Lookup(Py_TYPE(self), names().forward);
    if (runs_step(self, forward)) {
      return run_step(reinterpret_cast<StepModuleObject*>(self), args, kwargs);
    }
    if (forward != nullptr && PyFunction_Check(forward)) {
      return call_with_self(forward, self, args, kwargs);
    }
  }
  return call_with_self(_PyType_Lookup(names().module_type, names().call), self, args, kwargs);
}

PyObject* step_module_run_step(PyObject* self, PyObject* args, PyObject* kwargs) {
  return run_step(reinterpret_cast<StepModuleObject*>(self), args, kwargs);
}

PyObject* get_step(PyObject* self, void* /*closure*/) {
  PyObject* const step = reinterpret_cast<StepModuleObject*>(self)->step;
  return Py_NewRef(step != nullptr ? step : Py_None);
}

int set_step(PyObject* self_object, PyObject* value, void* /*closure*/) {
  auto* const self = reinterpret_cast<StepModuleObject*>(self_object);
  Step* native = nullptr;
  if (value == Py_None) {
    value = nullptr;
  }
  if (value != nullptr) {
    try {
      native = py::handle(value).cast<Step*>();
    } catch (const std::exception&) {
      PyErr_Format(PyExc_TypeError,
                   "StepModule._step: value has type %s; a native step or None is required.",
                   Py_TYPE(value)->tp_name);
      return -1;
    }
  }
  PyObject* const old = self->step;
  self->step = Py_XNewRef(value);
  self->native = native;
  Py_XDECREF(old);
  return 0;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<StepModuleObject*>(self)->step);
  return 0;
}

int clear(PyObject* self) {
  reinterpret_cast<StepModuleObject*>(self)->native = nullptr;
  Py_CLEAR(reinterpret_cast<StepModuleObject*>(self)->step);
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"_run_step", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(step_module_run_step)),
     METH_VARARGS | METH_KEYWORDS, "Run the module's native step with forward's arguments."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"_step", get_step, set_step,
     "The native step, or None before the first forward; None drops it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// Makes instances of `type` callable in C, unless the class has a __call__ of its own. The class
// dictionary keeps nn.Module's function: that is what torch.compile and `module.__call__` find.
void enable_fast_call(const py::handle& type_object) {
  TE_CHECK_TYPE(PyType_Check(type_object.ptr()), "enable_fast_call: type is a ",
                Py_TYPE(type_object.ptr())->tp_name, "; a class is required.");
  auto* const type = reinterpret_cast<PyTypeObject*>(type_object.ptr());
  if (_PyType_Lookup(type, names().call) == names().original_call) {
    type->tp_call = module_call;
  }
}

PyType_Slot slots[] = {{Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {0, nullptr}};

PyType_Spec spec = {"transformer_engine_torch.StepModule", sizeof(StepModuleObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

void bind_step_module(py::module_& m) {
  py::class_<Step, std::shared_ptr<Step>>(m, "Step", "A module's native forward; see StepModule.");
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  names().step_module_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
  m.add_object("StepModule", type);
  m.def("enable_fast_call", &enable_fast_call, py::arg("type"),
        "Give instances of this subclass of nn.Module the C call, unless it defines __call__ "
        "itself. To be called once for each class.");
  m.def(
      "register_native_forward",
      [](const py::function& forward) {
        names().native_forwards.push_back(Py_NewRef(forward.ptr()));
      },
      py::arg("forward"),
      "Declare that this class function `forward` does nothing but call self._run_step; calls may "
      "then skip it.");
}

}  // namespace transformer_engine::pytorch
