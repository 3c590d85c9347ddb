// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The context manager of a quantization region as a C type. Written in Python, opening and closing
// one costs 1 us, a fifth of a plain linear layer's forward; here a third of that. Python is asked
// for what is unusual: arguments of another type, the default recipe, a recipe seen for the first
// time, the size of a process group.
#include <pybind11/pybind11.h>
#include <transformer_engine/error.h>

#include <array>

#include "bind.h"
#include "python_ref.h"
#include "recipe_state.h"
#include "steps/python_call.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

struct RegionObject {
  PyObject_HEAD PyObject* recipe;  // or null: the default one of the moment
  PyObject* group;                 // or null
  bool enabled, calibrating, is_graph, is_active;
};

// What Python registers once (set_region_functions); never released.
struct Functions {
  PyObject* check_arguments = nullptr;  // (enabled, calibrating, recipe, group) -> the flags
  PyObject* default_recipe = nullptr;   // () -> Recipe
  PyObject* native_recipe = nullptr;    // (Recipe) -> NativeRecipe
  PyObject* world_size = nullptr;       // (group) -> int
  PyObject* world = nullptr;            // torch's object that holds the default process group
  PyTypeObject* recipe_type = nullptr;
};
Functions functions;

constexpr size_t kArguments = 5;
const std::array<Name, kArguments>& argument_names() {
  static const auto* const names = new std::array<Name, kArguments>{
      "enabled", "calibrating", "recipe", "amax_reduction_group", "_graph"};
  return *names;
}

py::object call(PyObject* function, PyObject* const* args, size_t count) {
  auto result =
      py::reinterpret_steal<py::object>(PyObject_Vectorcall(function, args, count, nullptr));
  if (!result) {
    throw py::error_already_set();
  }
  return result;
}

// Unset values stay null. False where the call is not one that this loop understands.
bool read_arguments(PyObject* args, PyObject* kwargs, PyObject** values) {
  const Py_ssize_t given = PyTuple_GET_SIZE(args);
  if (given > static_cast<Py_ssize_t>(kArguments)) {
    return false;
  }
  for (Py_ssize_t i = 0; i < given; ++i) {
    values[i] = PyTuple_GET_ITEM(args, i);
  }
  if (kwargs == nullptr) {
    return true;
  }
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(kwargs, &position, &key, &value) != 0) {
    size_t i = 0;
    while (i < kArguments && key != argument_names()[i].object()) {
      ++i;
    }
    if (i == kArguments || values[i] != nullptr) {
      return false;
    }
    values[i] = value;
  }
  return true;
}

bool is_given(PyObject* value) { return value != nullptr && value != Py_None; }
bool is_flag(PyObject* value) { return value == nullptr || value == Py_True || value == Py_False; }

int region_init(PyObject* self_object, PyObject* args, PyObject* kwargs) {
  auto* const self = reinterpret_cast<RegionObject*>(self_object);
  PyObject* values[kArguments] = {};
  if (!read_arguments(args, kwargs, values)) {
    static const char* const keywords[] = {
        "enabled", "calibrating", "recipe", "amax_reduction_group", "_graph", nullptr};
    std::fill(std::begin(values), std::end(values), nullptr);
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOOO:autocast", const_cast<char**>(keywords),
                                    &values[0], &values[1], &values[2], &values[3],
                                    &values[4]) == 0) {
      return -1;
    }
  }
  const bool is_usual =
      is_flag(values[0]) && is_flag(values[1]) && !is_given(values[3]) &&
      (!is_given(values[2]) || PyObject_TypeCheck(values[2], functions.recipe_type) != 0);
  self->enabled = values[0] != Py_False;
  self->calibrating = values[1] == Py_True;
  py::object flags;
  PyObject* const done = translate_exceptions([&]() -> PyObject* {
    if (!is_usual) {
      PyObject* const given[] = {
          values[0] != nullptr ? values[0] : Py_True, values[1] != nullptr ? values[1] : Py_False,
          values[2] != nullptr ? values[2] : Py_None, values[3] != nullptr ? values[3] : Py_None};
      flags = call(functions.check_arguments, given, 4);
      self->enabled = truth(PyTuple_GetItem(flags.ptr(), 0));
      self->calibrating = truth(PyTuple_GetItem(flags.ptr(), 1));
    }
    self->is_graph = truth(values[4]);
    return Py_NewRef(Py_None);
  });
  if (done == nullptr) {
    return -1;
  }
  Py_DECREF(done);
  Py_XSETREF(self->recipe, is_given(values[2]) ? Py_NewRef(values[2]) : nullptr);
  Py_XSETREF(self->group, is_given(values[3]) ? Py_NewRef(values[3]) : nullptr);
  return 0;
}

// Whether torch.distributed has a default process group; true where that cannot be told cheaply.
bool may_have_process_groups() {
  static const Name default_group("_default_pg");
  return find_attribute(functions.world, default_group) != Py_None;
}

// Whether modules may have delayed scaling that is reduced. Slots that have it under another recipe
// say so each.
bool wants_reduction(PyObject* recipe, const Recipe& native) {
  static const Name reduce_amax("reduce_amax");
  if (!native.is_delayed) {
    return native.may_have_delayed_slots();
  }
  const auto wanted =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(recipe, reduce_amax.object()));
  if (!wanted) {
    throw py::error_already_set();
  }
  return truth(wanted.ptr());
}

bool reduces_amax(PyObject* recipe, const Recipe& native, PyObject* group) {
  if (!wants_reduction(recipe, native) || (group == nullptr && !may_have_process_groups())) {
    return false;
  }
  PyObject* const given[] = {group != nullptr ? group : Py_None};
  return call(functions.world_size, given, 1).cast<int64_t>() > 1;
}

std::shared_ptr<Recipe> native_recipe(PyObject* recipe) {
  static const Name native("_native");
  auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(recipe, native.object()));
  if (!found) {
    throw py::error_already_set();
  }
  if (found.is_none()) {
    found = call(functions.native_recipe, &recipe, 1);
  }
  return found.cast<std::shared_ptr<Recipe>>();
}

PyObject* region_enter(PyObject* self_object, PyObject* /*unused*/) {
  auto* const self = reinterpret_cast<RegionObject*>(self_object);
  return translate_exceptions([&]() -> PyObject* {
    TE_CHECK_AS(RuntimeError, !self->is_active,
                "autocast: this instance is active already; it can be entered once at a time. "
                "Make a second instance for a nested region.");
    const py::object recipe = self->recipe != nullptr
                                  ? py::reinterpret_borrow<py::object>(self->recipe)
                                  : call(functions.default_recipe, nullptr, 0);
    AutocastState next{.enabled = self->enabled,
                       .calibrating = self->calibrating,
                       .is_graph = self->is_graph || is_graph_capturing(),
                       .recipe = nullptr,
                       .recipe_object = std::make_shared<const PythonRef>(recipe.ptr()),
                       .group = nullptr};
    if (self->group != nullptr) {
      next.group = std::make_shared<const PythonRef>(self->group);
    }
    if (next.is_quantizing()) {
      next.recipe = native_recipe(recipe.ptr());
      next.reduces_amax = reduces_amax(recipe.ptr(), *next.recipe, self->group);
    }
    autocast_enter(std::move(next));
    self->is_active = true;
    return Py_NewRef(Py_None);
  });
}

PyObject* region_exit(PyObject* self, PyObject* const* exception, Py_ssize_t count) {
  return translate_exceptions([&]() -> PyObject* {
    bool& is_active = reinterpret_cast<RegionObject*>(self)->is_active;
    TE_CHECK_AS(RuntimeError, is_active,
                "autocast: this instance is not active; only an entered region can be left. Use "
                "it in a with statement.");
    is_active = false;
    autocast_exit(/*has_failed=*/count > 0 && exception[0] != Py_None);
    return Py_NewRef(Py_None);
  });
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<RegionObject*>(self)->recipe);
  Py_VISIT(reinterpret_cast<RegionObject*>(self)->group);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<RegionObject*>(self)->recipe);
  Py_CLEAR(reinterpret_cast<RegionObject*>(self)->group);
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
    {"__enter__", region_enter, METH_NOARGS, "Enter the region."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(region_exit)),
     METH_FASTCALL, "Leave the region."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* get_enabled(PyObject* self, void* /*closure*/) {
  return PyBool_FromLong(static_cast<long>(reinterpret_cast<RegionObject*>(self)->enabled));
}
PyObject* get_calibrating(PyObject* self, void* /*closure*/) {
  return PyBool_FromLong(static_cast<long>(reinterpret_cast<RegionObject*>(self)->calibrating));
}
PyObject* or_none(PyObject* object) { return Py_NewRef(object != nullptr ? object : Py_None); }
PyObject* get_recipe(PyObject* self, void* /*closure*/) {
  return or_none(reinterpret_cast<RegionObject*>(self)->recipe);
}
PyObject* get_group(PyObject* self, void* /*closure*/) {
  return or_none(reinterpret_cast<RegionObject*>(self)->group);
}

PyGetSetDef properties[] = {
    {"enabled", get_enabled, nullptr, "Whether modules inside quantize.", nullptr},
    {"calibrating", get_calibrating, nullptr, "Whether modules inside observe amaxes.", nullptr},
    {"recipe", get_recipe, nullptr, "As given; None is the default one.", nullptr},
    {"amax_reduction_group", get_group, nullptr, "As given.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr char kDoc[] =
    "Region(enabled=True, calibrating=False, recipe=None, amax_reduction_group=None, "
    "_graph=False)\n--\n\nA quantization region of this thread; see autocast.";

PyType_Slot slots[] = {{Py_tp_init, reinterpret_cast<void*>(region_init)},
                       {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                       {Py_tp_doc, const_cast<char*>(kDoc)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {0, nullptr}};

PyType_Spec spec = {"transformer_engine_torch.Region", sizeof(RegionObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

void bind_region(py::module_& m) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  m.add_object("Region", type);
  m.def(
      "set_region_functions",
      [](const py::function& check_arguments, const py::function& default_recipe,
         const py::function& native_recipe, const py::function& world_size, const py::object& world,
         const py::type& recipe_type) {
        functions = {
            .check_arguments = Py_NewRef(check_arguments.ptr()),
            .default_recipe = Py_NewRef(default_recipe.ptr()),
            .native_recipe = Py_NewRef(native_recipe.ptr()),
            .world_size = Py_NewRef(world_size.ptr()),
            .world = Py_NewRef(world.ptr()),
            .recipe_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(recipe_type.ptr())),
        };
      },
      py::kw_only(), py::arg("check_arguments"), py::arg("default_recipe"),
      py::arg("native_recipe"), py::arg("world_size"), py::arg("world"), py::arg("recipe_type"),
      "What a Region asks Python for; once, before the first Region.");
}

}  // namespace transformer_engine::pytorch
