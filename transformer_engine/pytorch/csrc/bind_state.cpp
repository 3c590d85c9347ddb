// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include <array>

#include "bind.h"
#include "recipe_state.h"
#include "steps/node_support.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

std::shared_ptr<const PythonRef> hold(const py::object& object) {
  return object.is_none() ? nullptr : std::make_shared<const PythonRef>(object.ptr());
}

py::object held(const std::shared_ptr<const PythonRef>& ref) {
  return ref == nullptr ? py::none() : py::reinterpret_borrow<py::object>(ref->get());
}

void enter(bool enabled, bool calibrating, bool is_graph, bool reduces_amax,
           std::shared_ptr<Recipe> recipe, const py::object& recipe_object,
           const py::object& group) {
  autocast_enter({.enabled = enabled,
                  .calibrating = calibrating,
                  .is_graph = is_graph,
                  .reduces_amax = reduces_amax,
                  .first_module = false,
                  .recipe = std::move(recipe),
                  .recipe_object = hold(recipe_object),
                  .group = hold(group)});
}

void bind_autocast(py::module_& m) {
  m.def("autocast_enter", &enter, py::arg("enabled"), py::arg("calibrating"), py::arg("is_graph"),
        py::arg("reduces_amax"), py::arg("recipe"), py::arg("recipe_object"), py::arg("group"),
        "Enter a quantization region on this thread.");
  m.def(
      "autocast_exit", [] { autocast_exit(); },
      "Leave the innermost region; at the outermost exit of an enabled one, with grad mode on, "
      "run the forward update.");
  m.def("autocast_depth", &autocast_depth, "Number of regions entered on this thread.");
  // A plain copy of the region's state, for the FP8GlobalStateManager facade.
  py::class_<AutocastState>(m, "AutocastState")
      .def_readwrite("enabled", &AutocastState::enabled)
      .def_readwrite("calibrating", &AutocastState::calibrating)
      .def_readwrite("is_graph", &AutocastState::is_graph)
      .def_readwrite("first_module", &AutocastState::first_module)
      .def_property_readonly("recipe_object",
                             [](const AutocastState& self) { return held(self.recipe_object); })
      .def_property_readonly("group", [](const AutocastState& self) { return held(self.group); });
  m.def(
      "autocast_state", [] { return autocast_state(); },
      "Copy of the state in force on this thread.");
  m.def(
      "may_run_fp8_attention",
      [] {
        const AutocastState& state = autocast_state();
        return state.is_quantizing() && state.recipe->has_fp8_attention;
      },
      "Whether the region in force quantizes or calibrates with a recipe that has FP8 attention.");
  m.def(
      "is_region_quantizing", [] { return autocast_state().is_quantizing(); },
      "Whether the region in force quantizes or calibrates.");
  m.def(
      "set_autocast_state", [](const AutocastState& state) { autocast_state() = state; },
      py::arg("state"));
  m.def(
      "take_first_module", [] { return std::exchange(autocast_state().first_module, false); },
      "Whether no quantized module ran yet in this region; clears the flag.");
  m.def(
      "set_recompute_phase",
      [](int phase) { set_recompute_phase(static_cast<RecomputePhase>(phase)); }, py::arg("phase"),
      "0: none; 1, 2: inside the first or second run of a checkpointed function.");
  m.def("is_graph_capturing", &is_graph_capturing, "Whether a CUDA graph is being captured.");
  m.def("set_graph_capturing", &set_graph_capturing, py::arg("is_capturing"));
  m.def(
      "skip_weight_update",
      []() -> std::optional<at::Tensor> {
        at::Tensor flag = skip_weight_update();
        return flag.defined() ? std::optional(std::move(flag)) : std::nullopt;
      },
      "The flag of set_skip_weight_update, or None.");
  m.def(
      "set_skip_weight_update",
      [](std::optional<at::Tensor> flag) {
        set_skip_weight_update(std::move(flag).value_or(at::Tensor()));
      },
      py::arg("flag"),
      "The flag that weights' quantizations read inside a graph capture (float32 [1], not 0 skips "
      "them), or None.");
  m.def("is_in_backward", &is_in_backward, "Whether this thread executes a backward graph.");
}

void bind_delayed_scaling(py::module_& m) {
  using State = DelayedScalingState;
  py::class_<State, std::shared_ptr<State>>(
      m, "DelayedScalingState", "Delayed-scaling buffers of one direction of one module.")
      .def(py::init([](at::Tensor scale, at::Tensor amax_history, std::shared_ptr<Recipe> recipe,
                       bool is_forward, float fp8_max) {
             return std::make_shared<State>(std::move(scale), std::move(amax_history),
                                            std::move(recipe), is_forward, fp8_max);
           }),
           py::arg("scale"), py::arg("amax_history"), py::arg("recipe"), py::arg("is_forward"),
           py::arg("fp8_max"))
      .def_readonly("scale", &State::scale)
      .def_readonly("amax_history", &State::amax_history)
      .def_readonly("is_forward", &State::is_forward)
      .def_readonly("fp8_max", &State::fp8_max)
      .def_readonly("version", &State::version)
      .def_readonly("number", &State::number)
      .def_property_readonly(
          "recipe", [](const State& self) { return std::const_pointer_cast<Recipe>(self.recipe); })
      .def_readwrite("name", &State::name)
      .def_property_readonly("group", [](const State& self) { return held(self.group); })
      .def_property_readonly("region_recipe_name",
                             [](const State& self) {
                               return self.region_recipe != nullptr ? self.region_recipe->name : "";
                             })
      .def_readonly("reduces_amax", &State::reduces_amax)
      .def("mark_used", &State::mark_used)
      .def(
          "use_in_region",
          [](State& self) {
            self.set_region(autocast_state());
            self.mark_used();
          },
          "Count as used by the region in force, as a forward inside it does.")
      .def(
          "update",
          [](State& self, const std::optional<at::Tensor>& reduced_amax) {
            TE_CHECK(!reduced_amax.has_value() || reduced_amax->numel() == self.scale.numel(),
                     "DelayedScalingState.update: reduced_amax has shape ",
                     reduced_amax.value_or(at::Tensor()).sizes(), "; ", self.scale.numel(),
                     " elements are required.");
            self.update(reduced_amax.value_or(at::Tensor()));
          },
          py::arg("reduced_amax") = py::none())
      .def(
          "replace_scale",
          [](State& self, const at::Tensor& scale) {
            self.begin_update();
            self.scale.copy_(scale);
          },
          py::arg("scale"), "Count an update whose scale was computed elsewhere.");
  m.def("register_delayed_scaling", &register_delayed_scaling, py::arg("state"));
  m.def("registered_delayed_scaling", &registered_delayed_scaling, py::arg("is_forward"));
  m.def(
      "update_delayed_scaling", [](bool is_forward) { update_delayed_scaling(is_forward); },
      py::arg("is_forward"),
      "Advance every state of that direction that was used since the last call.");
  m.def("reset_quantization_state", &reset_quantization_state);
  m.def("set_python_update",
        [](const py::function& update) { set_python_update(PythonRef(update.ptr())); });
  m.def("set_quantized_tensor_factory",
        [](const py::function& factory) { set_quantized_tensor_factory(factory.ptr()); });
}

BackwardMode backward_mode(const std::optional<std::string>& backward_override) {
  if (!backward_override.has_value()) {
    return BackwardMode::kQuantized;
  }
  const bool is_dequantized = *backward_override == "dequantized";
  TE_CHECK(is_dequantized || *backward_override == "high_precision",
           "NativeRecipe: backward_override is '", *backward_override,
           "'; 'high_precision', 'dequantized' or None is required.");
  return is_dequantized ? BackwardMode::kDequantized : BackwardMode::kHighPrecision;
}

}  // namespace

void bind_state(py::module_& m) {
  py::class_<Recipe, std::shared_ptr<Recipe>>(m, "NativeRecipe",
                                              "What native code needs of a recipe.")
      .def(py::init([](std::string name, bool is_delayed, float margin, bool most_recent,
                       bool reduces_amax, bool has_python_update, const py::object& python_recipe,
                       const std::optional<std::string>& backward_override,
                       const std::array<bool, 3>& fast_accumulation, bool is_custom,
                       bool has_fp8_attention) {
             const auto [fprop, dgrad, wgrad] = fast_accumulation;
             return std::make_shared<Recipe>(Recipe{
                 .is_delayed = is_delayed,
                 .backward = backward_mode(backward_override),
                 .name = std::move(name),
                 .margin = margin,
                 .amax_algo = most_recent ? AmaxComputeAlgo::kMostRecent : AmaxComputeAlgo::kMax,
                 .reduces_amax = reduces_amax,
                 .is_custom = is_custom,
                 .has_fp8_attention = has_fp8_attention,
                 .has_python_update = has_python_update,
                 .python_recipe = hold(python_recipe),
                 .fast_accumulation = {.fprop = fprop, .dgrad = dgrad, .wgrad = wgrad}});
           }),
           py::arg("name"), py::arg("is_delayed") = false, py::arg("margin") = 0.0F,
           py::arg("most_recent") = false, py::arg("reduces_amax") = true,
           py::arg("has_python_update") = false, py::arg("python_recipe") = py::none(),
           py::arg("backward_override") = py::none(),
           py::arg("fast_accumulation") = std::array<bool, 3>{}, py::arg("is_custom") = false,
           py::arg("has_fp8_attention") = false)
      .def_property_readonly("python_recipe",
                             [](const Recipe& self) { return held(self.python_recipe); })
      .def_property_readonly("fast_accumulation",
                             [](const Recipe& self) {
                               const FastAccumulation& fast = self.fast_accumulation;
                               return std::array<bool, 3>{fast.fprop, fast.dgrad, fast.wgrad};
                             })
      .def_readonly("name", &Recipe::name)
      .def_readonly("is_delayed", &Recipe::is_delayed)
      .def_readonly("has_python_update", &Recipe::has_python_update);
  bind_autocast(m);
  bind_delayed_scaling(m);
}

}  // namespace transformer_engine::pytorch
