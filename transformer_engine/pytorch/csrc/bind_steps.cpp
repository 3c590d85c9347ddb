// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "bind.h"
#include "steps/linear_step.h"
#include "steps/norm_mlp_step.h"
#include "steps/norm_step.h"
#include "steps/python_step.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

std::vector<Name> names_of(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

std::shared_ptr<QuantizerSet> make_quantizer_set(
    std::shared_ptr<Recipe> recipe, std::vector<std::shared_ptr<Quantizer>> forward,
    std::vector<std::shared_ptr<Quantizer>> backward,
    std::shared_ptr<DelayedScalingState> forward_state,
    std::shared_ptr<DelayedScalingState> backward_state) {
  TE_CHECK(forward.size() % 3 == 0 && backward.size() == forward.size() / 3 * 2,
           "QuantizerSet: ", forward.size(), " forward and ", backward.size(),
           " backward quantizers; 3 and 2 per GEMM are required.");
  return std::make_shared<QuantizerSet>(QuantizerSet{.recipe = std::move(recipe),
                                                     .forward = std::move(forward),
                                                     .backward = std::move(backward),
                                                     .forward_state = std::move(forward_state),
                                                     .backward_state = std::move(backward_state)});
}

Sharding make_sharding(std::string owner, const std::string& parallel_mode, bool sequence_parallel,
                       const py::object& group) {
  TE_CHECK(parallel_mode == "row" || parallel_mode == "column", "Sharding: parallel_mode is ",
           parallel_mode, "; 'row' or 'column' is required.");
  return {.mode = parallel_mode == "row" ? ParallelMode::kRow : ParallelMode::kColumn,
          .is_sequence_parallel = sequence_parallel,
          .group = std::make_shared<const RankGroup>(std::move(owner), group)};
}

size_t delayed_wgrad_count(ModuleStep& step) {
  size_t count = 0;
  for (LinearPart* const linear : step.linear_parts()) {
    count = std::max(count, linear->wgrad_store().tasks.size());
  }
  return count;
}

py::list run_delayed_wgrads(ModuleStep& step) {
  py::list results;
  for (LinearPart* const linear : step.linear_parts()) {
    TensorList gradients, weights;
    {
      const py::gil_scoped_release no_gil;
      std::tie(gradients, weights) = run_delayed_wgrad(*linear);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      const py::object gradient = gradients[i].defined() ? py::cast(gradients[i]) : py::none();
      results.append(py::make_tuple(weights[i], gradient));
    }
  }
  return results;
}

py::list take_captured_weights(ModuleStep& step) {
  py::list tensors;
  for (LinearPart* const linear : step.linear_parts()) {
    const Operand operand = linear->take_captured_weight();
    for (const OperandCopy* const copy : {&operand.rowwise, &operand.columnwise}) {
      for (const at::Tensor& part : {copy->data, copy->scale_inv, copy->amax}) {
        if (part.defined()) {
          tensors.append(part);
        }
      }
    }
  }
  return tensors;
}

// A Python object whose life is tied to a tensor's storage: graphs that pass only tensors from a
// forward to its backward carry it along. The address in front tells the storage from a copy of it.
struct HeldObject {
  HeldObject* self;
  PyObject* object;
};

at::Tensor hold_object(py::object object) {
  auto* const held = new HeldObject{};
  *held = {.self = held, .object = object.release().ptr()};
  const auto release = [](void* data) {
    auto* const dying = static_cast<HeldObject*>(data);
    if (Py_IsInitialized() != 0) {
      const py::gil_scoped_acquire gil;
      Py_DECREF(dying->object);
    }
    delete dying;
  };
  constexpr auto kWords = static_cast<int64_t>(sizeof(HeldObject) / sizeof(int64_t));
  return at::from_blob(held, {kWords}, release, at::TensorOptions().dtype(at::kLong));
}

py::object held_object(const at::Tensor& holder) {
  constexpr auto kBytes = sizeof(HeldObject);
  TE_CHECK_TYPE(holder.is_cpu() && holder.scalar_type() == at::kLong && holder.is_contiguous() &&
                    static_cast<size_t>(holder.numel()) * sizeof(int64_t) == kBytes,
                "held_object: holder has shape ", holder.sizes(), " and dtype ",
                at::toString(holder.scalar_type()), "; a result of hold_object is required.");
  const auto* const held = static_cast<const HeldObject*>(holder.const_data_ptr());
  TE_CHECK(held->self == held,
           "held_object: holder is a copy of a result of hold_object; the tensor itself, or a view "
           "of it, is required.");
  return py::reinterpret_borrow<py::object>(held->object);
}

// Leads the edges of `output`'s node to leaves of their own: for each tensor a detached alias,
// where the node had an edge to the tensor itself. Gradients for the aliases run no hooks of the
// tensors.
std::vector<at::Tensor> detach_edges(const at::Tensor& output,
                                     const std::vector<at::Tensor>& tensors) {
  using torch::autograd::AccumulateGrad;
  const auto& node = output.grad_fn();
  TE_CHECK(node != nullptr, "detach_edges: output has no grad_fn; a recorded output is required.");
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& tensor : tensors) {
    leaves.push_back(tensor.detach().set_requires_grad(true));
    const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(leaves.back());
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const auto* const accumulate =
          dynamic_cast<const AccumulateGrad*>(node->next_edge(i).function.get());
      if (accumulate != nullptr && accumulate->variable.is_same(tensor)) {
        node->set_next_edge(i, edge);
      }
    }
  }
  return leaves;
}

// Calls `body` as if no operator were running: autograd records again. No forward in it counts as
// the repetition of another.
py::object call_above_autograd(const py::function& body) {
  const SingleRun single;
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  const c10::impl::ForceDispatchKeyGuard guard(keys);
  return body();
}

}  // namespace

void bind_steps(py::module_& m) {
  m.def("detach_edges", &detach_edges, py::arg("output"), py::arg("tensors"),
        "Lead the edges of output's node to detached aliases of the tensors; list of the aliases.");
  m.def("call_above_autograd", &call_above_autograd, py::arg("body"),
        "body(), recorded by autograd also inside an operator's implementation; its forwards "
        "repeat no "
        "others.");
  m.def("hold_object", &hold_object, py::arg("held"),
        "An int64 tensor on the CPU that keeps the object alive as long as its storage lives.");
  m.def("held_object", &held_object, py::arg("holder"),
        "The object of hold_object; ValueError for a copy of its result.");
  py::class_<QuantizerSet, std::shared_ptr<QuantizerSet>>(
      m, "QuantizerSet", "The quantizers of one module for one recipe.")
      .def(py::init(&make_quantizer_set), py::arg("recipe"), py::arg("forward"),
           py::arg("backward"), py::arg("forward_state") = nullptr,
           py::arg("backward_state") = nullptr)
      .def_readonly("forward_state", &QuantizerSet::forward_state)
      .def_readonly("backward_state", &QuantizerSet::backward_state);

  py::class_<NormSpec>(m, "NormSpec")
      .def(py::init([](std::string label, bool is_rmsnorm, const std::string& weight_name,
                       const std::string& bias_name, int64_t hidden, float epsilon,
                       bool zero_centered_gamma) {
             return NormSpec{.label = std::move(label),
                             .kind = is_rmsnorm ? NormKind::kRMSNorm : NormKind::kLayerNorm,
                             .weight_name = weight_name,
                             .bias_name = bias_name,
                             .hidden = hidden,
                             .epsilon = epsilon,
                             .zero_centered_gamma = zero_centered_gamma};
           }),
           py::kw_only(), py::arg("label"), py::arg("is_rmsnorm"), py::arg("weight_name"),
           py::arg("bias_name"), py::arg("hidden"), py::arg("epsilon"),
           py::arg("zero_centered_gamma"));

  py::class_<Sharding>(m, "Sharding",
                       "How the ranks of a tensor-parallel group share a linear layer.")
      .def(py::init(&make_sharding), py::kw_only(), py::arg("owner"), py::arg("parallel_mode"),
           py::arg("sequence_parallel"), py::arg("group"));

  py::class_<LinearSpec>(m, "LinearSpec")
      .def(py::init([](std::string label, const std::vector<std::string>& weight_names,
                       const std::vector<std::string>& bias_names, int64_t in_features,
                       int64_t out_features, int gemm, bool fuse_wgrad_accumulation,
                       bool delay_wgrad_compute, const std::optional<Sharding>& sharding) {
             return LinearSpec{.label = std::move(label),
                               .weight_names = names_of(weight_names),
                               .bias_names = names_of(bias_names),
                               .in_features = in_features,
                               .out_features = out_features,
                               .gemm = gemm,
                               .fuse_wgrad_accumulation = fuse_wgrad_accumulation,
                               .delay_wgrad_compute = delay_wgrad_compute,
                               .sharding = sharding.value_or(Sharding{})};
           }),
           py::kw_only(), py::arg("label"), py::arg("weight_names"), py::arg("bias_names"),
           py::arg("in_features"), py::arg("out_features"), py::arg("gemm") = 0,
           py::arg("fuse_wgrad_accumulation") = false, py::arg("delay_wgrad_compute") = false,
           py::arg("sharding") = py::none());

  py::class_<ModuleStep, Step, std::shared_ptr<ModuleStep>>(m, "ModuleStep")
      .def(
          "set_quantizers",
          [](ModuleStep& self, std::shared_ptr<QuantizerSet> set) {
            self.set_quantizers(std::move(set));
          },
          py::arg("quantizers"))
      .def("inherit", &ModuleStep::inherit, py::arg("previous"),
           "Take over what calls left in the step that this one replaces.")
      .def_property_readonly("was_quantized", &ModuleStep::was_quantized)
      .def_property_readonly("was_calibrating", &ModuleStep::was_calibrating)
      .def_property_readonly("activation_dtype", &ModuleStep::activation_dtype)
      .def_property_readonly("delayed_wgrad_count", &delayed_wgrad_count)
      .def("take_captured_weights", &take_captured_weights,
           "Tensors of the quantized weights that graph captures left, which replays write to. The "
           "next capture makes others.")
      .def("run_delayed_wgrads", &run_delayed_wgrads,
           "Run the oldest delayed weight gradient of each linear layer: list of (weight, gradient "
           "| None).");

  py::class_<QuantizedCall>(m, "QuantizedCall",
                            "What one forward of a PythonStep knows of quantization.")
      .def_property_readonly("is_quantized",
                             [](const QuantizedCall& self) { return self.state().is_quantized; })
      .def_property_readonly("is_calibrating",
                             [](const QuantizedCall& self) { return self.state().is_calibrating; })
      .def_property_readonly("is_replay",
                             [](const QuantizedCall& self) { return self.state().is_replay; })
      .def_property_readonly(
          "forward_scales",
          [](const QuantizedCall& self) -> std::optional<at::Tensor> {
            at::Tensor scales = self.forward_scales();
            return scales.defined() ? std::optional(std::move(scales)) : std::nullopt;
          },
          "float32 [slots]: those of the forward that runs, or that it repeats.")
      .def_property_readonly(
          "backward_override",
          [](const QuantizedCall& self) -> std::optional<std::string> {
            switch (self.state().backward_mode()) {
              case BackwardMode::kHighPrecision:
                return "high_precision";
              case BackwardMode::kDequantized:
                return "dequantized";
              case BackwardMode::kQuantized:
                break;
            }
            return std::nullopt;
          },
          "The recipe's.")
      .def_property_readonly("forward_quantizers", &QuantizedCall::forward_quantizers)
      .def_property_readonly("backward_quantizers", &QuantizedCall::backward_quantizers)
      .def(
          "finish_backward", [](const QuantizedCall& self) { finish_backward(self.state()); },
          "To be called at the end of the backward: ends delayed scaling's step where it is due.");
  py::class_<PythonStep, ModuleStep, std::shared_ptr<PythonStep>>(
      m, "PythonStep", "A step that calls module._quantized_forward(call, *args, **kwargs).")
      .def(py::init<std::string>(), py::arg("name"));

  py::class_<LinearStep, ModuleStep, std::shared_ptr<LinearStep>>(m, "LinearStep")
      .def(py::init([](std::string name, LinearSpec linear, std::optional<NormSpec> norm,
                       bool return_bias, bool return_layernorm_output,
                       bool return_layernorm_output_gathered, bool save_original_input) {
             return std::make_shared<LinearStep>(LinearStepSpec{
                 .name = std::move(name),
                 .linear = std::move(linear),
                 .norm = std::move(norm),
                 .return_bias = return_bias,
                 .return_layernorm_output = return_layernorm_output,
                 .return_layernorm_output_gathered = return_layernorm_output_gathered,
                 .save_original_input = save_original_input});
           }),
           py::kw_only(), py::arg("name"), py::arg("linear"), py::arg("norm") = py::none(),
           py::arg("return_bias") = false, py::arg("return_layernorm_output") = false,
           py::arg("return_layernorm_output_gathered") = false,
           py::arg("save_original_input") = false);

  py::class_<NormStep, ModuleStep, std::shared_ptr<NormStep>>(m, "NormStep")
      .def(py::init([](NormSpec norm, std::vector<int64_t> normalized_shape) {
             return std::make_shared<NormStep>(NormStepSpec{
                 .norm = std::move(norm), .normalized_shape = std::move(normalized_shape)});
           }),
           py::kw_only(), py::arg("norm"), py::arg("normalized_shape"));

  py::class_<NormMLPStep, ModuleStep, std::shared_ptr<NormMLPStep>>(m, "NormMLPStep")
      .def(py::init([](std::string name, NormSpec norm, LinearSpec fc1, LinearSpec fc2,
                       int activation, const std::map<std::string, float>& params, bool return_bias,
                       bool return_layernorm_output, bool return_layernorm_output_gathered,
                       bool recomputes) {
             NormMLPStepSpec spec{
                 .name = std::move(name),
                 .norm = std::move(norm),
                 .fc1 = std::move(fc1),
                 .fc2 = std::move(fc2),
                 .activation = static_cast<ActivationKind>(activation),
                 .activation_params = {},
                 .return_bias = return_bias,
                 .return_layernorm_output = return_layernorm_output,
                 .return_layernorm_output_gathered = return_layernorm_output_gathered,
                 .recomputes = recomputes};
             const auto read = [&](const char* key, float* value) {
               if (const auto found = params.find(key); found != params.end()) {
                 *value = found->second;
               }
             };
             read("limit", &spec.activation_params.limit);
             read("alpha", &spec.activation_params.alpha);
             read("glu_linear_offset", &spec.activation_params.glu_linear_offset);
             return std::make_shared<NormMLPStep>(std::move(spec));
           }),
           py::kw_only(), py::arg("name"), py::arg("norm"), py::arg("fc1"), py::arg("fc2"),
           py::arg("activation"), py::arg("activation_params") = std::map<std::string, float>(),
           py::arg("return_bias") = false, py::arg("return_layernorm_output") = false,
           py::arg("return_layernorm_output_gathered") = false, py::arg("recomputes") = false);
}

}  // namespace transformer_engine::pytorch
