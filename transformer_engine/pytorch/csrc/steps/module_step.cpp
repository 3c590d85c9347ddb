// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/module_step.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>
#include <transformer_engine/error.h>

#include <algorithm>

#include "steps/linear_part.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

bool ForwardRecord::is_like(const ForwardRecord& next) const {
  return is_inside_node == next.is_inside_node && thread == next.thread && has_hook_of(next) &&
         (is_inside_node ? node == next.node : hook != nullptr) && state == next.state;
}

void RecomputeLog::push(ForwardRecord record) {
  if (!records_.empty() && records_.back().is_like(record)) {
    ++records_.back().count;
    return;
  }
  records_.push_back(std::move(record));
  if (records_.size() > kCapacity) {
    last_dropped_ = std::move(records_.front());
    records_.pop_front();
  }
}

namespace {

// States that one module takes in turn within one checkpointed region.
constexpr size_t kStatesInRegion = 16;

// Adds a record, or counts it where the state is that of the last; false when that is enough.
bool append(const ForwardRecord& record, std::deque<ForwardRecord>* records) {
  if (!records->empty() && records->back().state == record.state) {
    records->back().count += record.count;
    return true;
  }
  records->push_back(record);
  return records->size() < kStatesInRegion;
}

}  // namespace

// A checkpoint that runs without recording inside its own node: every forward of the repetition
// stands for the next one that ran in or after that node. (Not all of them lie inside it, but it
// repeats no more than those that do.)
std::deque<ForwardRecord> RecomputeLog::records_after_node(const RunningNode& node) const {
  std::deque<ForwardRecord> found;
  for (const ForwardRecord& record : records_) {
    if (record.is_inside_node && record.thread == node.thread && record.node >= node.sequence &&
        (found.empty() || record.has_hook_of(found.front())) && !append(record, &found)) {
      break;
    }
  }
  const bool is_forgotten = last_dropped_.has_value() && last_dropped_->is_inside_node &&
                            last_dropped_->thread == node.thread &&
                            last_dropped_->node >= node.sequence;
  TE_CHECK_AS(RuntimeError, !is_forgotten || !last_dropped_->state.has_scales(),
              "recompute: the delayed-scaling scales of the forward to repeat are forgotten; only "
              "those of the last ",
              kCapacity, " recomputable forwards are kept. Run backward sooner after its forward.");
  return found;
}

// A checkpoint by saved-tensor hooks: the running node is one of those that the region's forwards
// made, so the region is that of the last record at or before it.
std::deque<ForwardRecord> RecomputeLog::records_under_hook(const RunningNode& node) const {
  const ForwardRecord* last = nullptr;
  for (const ForwardRecord& record : records_) {
    if (record.hook != nullptr && record.thread == node.thread &&
        (record.node <= node.sequence || last == nullptr)) {
      last = &record;
    }
  }
  std::deque<ForwardRecord> found;
  if (last == nullptr) {
    return found;
  }
  const bool is_forgotten = last_dropped_.has_value() && last->node > node.sequence;
  TE_CHECK_AS(RuntimeError, !is_forgotten || !last_dropped_->state.has_scales(),
              "recompute: the delayed-scaling scales of the forward to repeat are forgotten; only "
              "those of the last ",
              kCapacity, " recomputable forwards are kept. Run backward sooner after its forward.");
  for (const ForwardRecord& record : records_) {
    if (record.hook != nullptr && record.has_hook_of(*last) && !append(record, &found)) {
      break;
    }
  }
  return found;
}

// With a hook in force, the hook recomputes, unless the node is a checkpoint that was under none
// itself: then the hook is that of another checkpoint inside it. In older torch such a one takes
// a sequence number even where nothing is recorded: then the forwards of torch's own checkpoint
// have later numbers than its node.
bool RecomputeLog::is_repeated_by_node(const RunningNode& node, const void* hook) const {
  if (hook == nullptr) {
    return true;
  }
  const auto current = torch::autograd::get_current_node();
  const bool is_checkpoint = current && current->name() == "CheckpointFunctionBackward";
  return std::any_of(records_.begin(), records_.end(), [&](const auto& record) {
    return record.is_inside_node && record.hook == nullptr && record.thread == node.thread &&
           (record.node == node.sequence || (is_checkpoint && record.node > node.sequence));
  });
}

const ForwardRecord* RecomputeLog::next_repeated() {
  if (records_.empty()) {
    return nullptr;
  }
  const RunningNode node = running_node();
  const void* hook = saved_tensor_hook();
  if (is_repeated_by_node(node, hook)) {
    hook = nullptr;
  }
  if (!runs_.empty() && runs_.front().node.graph_task != node.graph_task) {
    runs_.clear();
  }
  auto run = std::find_if(runs_.begin(), runs_.end(), [&](const Run& known) {
    return known.node == node && known.hook == hook;
  });
  if (run == runs_.end()) {
    auto records = hook == nullptr ? records_after_node(node) : records_under_hook(node);
    run = runs_.insert(run, {.node = node, .hook = hook, .records = std::move(records)});
  }
  if (run->records.empty()) {
    return nullptr;
  }
  if (run->done >= run->records.front().count && run->records.size() > 1) {
    run->records.pop_front();
    run->done = 0;
  }
  ++run->done;
  return &run->records.front();
}

PyObject* ModuleStep::composed_forward(PyObject* module, PyObject* args, PyObject* kwargs,
                                       const std::string& reason) const {
  static const Name composed_forward("_composed_forward");
  TE_CHECK_AS(NotImplementedError, !autocast_state().is_quantizing(), name_, ": ", reason,
              "; inside a quantized region plain tensors without transforms are required. Make "
              "this call outside te.autocast, or with te.autocast(enabled=False).");
  const auto method =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(module, composed_forward.object()));
  PyObject* const result = method ? PyObject_Call(method.ptr(), args, kwargs) : nullptr;
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return result;
}

namespace {

// Whether a torch function mode other than that of `with torch.device(...)` is active.
bool is_function_mode_active() {
  using at::impl::PythonTorchFunctionTLS;
  static const auto* const device_context = reinterpret_cast<const PyTypeObject*>(
      py::object(py::module_::import("torch.utils._device").attr("DeviceContext")).release().ptr());
  const int64_t count = PythonTorchFunctionTLS::stack_len();
  for (int64_t i = 0; i < count; ++i) {
    PyObject* const mode = PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    if (Py_TYPE(mode) != device_context) {
      return true;
    }
  }
  return false;
}

}  // namespace

PyObject* ModuleStep::call(PyObject* module, PyObject* args, PyObject* kwargs) {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::Tracer});
  return translate_exceptions([&] {
    const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
    if (included.has_any(kTransforms)) [[unlikely]] {
      return composed_forward(module, args, kwargs, "a function transform or a tracer is active");
    }
    // A mode watches operators; in a quantized region there are none to show.
    const bool is_watched =
        included.has(c10::DispatchKey::Python) || at::impl::torch_function_mode_enabled();
    if (is_watched && !autocast_state().is_quantizing()) [[unlikely]] {
      if (included.has(c10::DispatchKey::Python) || is_function_mode_active()) {
        return composed_forward(module, args, kwargs, "a mode watches torch's operators");
      }
    }
    RECORD_USER_SCOPE(name_.c_str());  // nothing without a profiler
    try {
      return forward(module, args, kwargs);
    } catch (const NeedsComposedForward& needed) {
      return composed_forward(module, args, kwargs, needed.reason);
    }
  });
}

void ModuleStep::ensure_quantizers(PyObject* module, const AutocastState& autocast) {
  if (quantizers_ != nullptr && quantizers_->recipe == autocast.recipe) {
    return;
  }
  static const Name make_quantizers("_make_quantizers");
  PyObject* const recipe =
      autocast.recipe_object != nullptr ? autocast.recipe_object->get() : Py_None;
  const auto result = py::reinterpret_steal<py::object>(
      PyObject_CallMethodOneArg(module, make_quantizers.object(), recipe));
  if (!result) {
    throw py::error_already_set();
  }
  TE_CHECK_AS(RuntimeError, quantizers_ != nullptr, name_,
              ": _make_quantizers returned without setting the step's quantizers; call "
              "self._step.set_quantizers().");
}

namespace {

// Delayed scaling in a forward: a custom recipe may have it in one direction alone.
void use_delayed_scaling(const AutocastState& autocast, CallState* state) {
  DelayedScalingState* const forward = state->quantizers->forward_state.get();
  DelayedScalingState* const backward = state->quantizers->backward_state.get();
  for (auto* const direction : {forward, backward}) {
    if (direction != nullptr) {
      direction->set_region(autocast);
    }
  }
  state->owns_backward_update =
      backward != nullptr && state->is_quantized && autocast.first_module && !autocast.is_graph;
  if (forward != nullptr) {
    state->scale_version = forward->version;
    if (state->is_quantized && !autocast.is_graph) {
      forward->mark_used();
    }
    if (autocast.is_graph && repeatability_now() != Repeatability::kNone) {
      state->graph_scales = std::make_shared<const at::Tensor>(forward->scale.clone());
    }
  }
}

}  // namespace

CallState ModuleStep::begin_forward(PyObject* module, at::ScalarType dtype) {
  CallState state;
  const ForwardRecord* const repeated = is_in_backward() ? recompute_log_.next_repeated() : nullptr;
  if (repeated != nullptr) {
    state = repeated->state;
    state.is_replay = true;
  } else {
    const AutocastState& autocast = autocast_state();
    state.is_quantized = autocast.enabled;
    state.is_calibrating = autocast.calibrating && !autocast.enabled;
    state.is_graph = autocast.is_graph;
    if (autocast.is_quantizing()) {
      ensure_quantizers(module, autocast);
      state.quantizers = quantizers_;
    }
    if (state.quantizers != nullptr) {
      use_delayed_scaling(autocast, &state);
    }
  }
  was_quantized_ = state.is_quantized;
  was_calibrating_ = state.is_calibrating;
  activation_dtype_ = dtype;
  return state;
}

void ModuleStep::end_forward(CallState& state, bool has_node, bool wants_gradient,
                             std::optional<uint64_t> first_node) {
  const Repeatability repeatability = repeatability_now();
  const bool may_be_repeated = repeatability != Repeatability::kNone;
  if (may_be_repeated) {
    // Repetitions too: a checkpoint inside a checkpoint repeats them once more.
    const bool is_inside_node = repeatability == Repeatability::kByNode;
    const uint64_t latest = at::sequence_number::peek() - (is_inside_node || has_node ? 1 : 0);
    recompute_log_.push({.node = is_inside_node ? latest : first_node.value_or(latest),
                         .thread = at::RecordFunction::currentThreadId(),
                         .is_inside_node = is_inside_node,
                         .hook = saved_tensor_hook_ref(),
                         .state = state});
  }
  if (state.is_replay) {
    return;
  }
  if (may_be_repeated && state.quantizers != nullptr &&
      state.quantizers->forward_state != nullptr) {
    state.quantizers->forward_state->keeps_past_scales = true;
  }
  // The first module that will have a backward of its own, at once or when a node repeats it.
  // (Regions recomputed by hooks record nodes as usual.)
  const bool will_have_node =
      has_node || (repeatability == Repeatability::kByNode && wants_gradient);
  if (state.owns_backward_update && will_have_node) {
    autocast_state().first_module = false;
  }
}

void ModuleStep::inherit(ModuleStep& previous) {
  if (quantizers_ == nullptr) {
    quantizers_ = previous.quantizers_;
  }
  recompute_log_ = std::move(previous.recompute_log_);
  was_quantized_ = previous.was_quantized_;
  was_calibrating_ = previous.was_calibrating_;
  activation_dtype_ = previous.activation_dtype_;
  const auto linears = linear_parts();
  const auto old_linears = previous.linear_parts();
  for (size_t i = 0; i < std::min(linears.size(), old_linears.size()); ++i) {
    linears[i]->share_wgrad_store(*old_linears[i]);
  }
}

void finish_backward(const CallState& state) {
  if (!state.is_quantized || state.is_graph || state.quantizers->backward_state == nullptr) {
    return;
  }
  DelayedScalingState& backward_state = *state.quantizers->backward_state;
  backward_state.mark_used();
  if (state.owns_backward_update) {
    update_delayed_scaling(/*is_forward=*/false);
  }
}

at::Tensor forward_scales(const CallState& state) {
  const DelayedScalingState& delayed = *state.quantizers->forward_state;
  if (!state.is_replay) {
    return delayed.scale;
  }
  return state.graph_scales != nullptr ? *state.graph_scales
                                       : delayed.scale_at(state.scale_version);
}

ReplayScales::ReplayScales(const CallState& state) {
  if (!state.is_replay || state.quantizers == nullptr ||
      state.quantizers->forward_state == nullptr) {
    return;
  }
  quantizers_ = state.quantizers.get();
  const at::Tensor scales = forward_scales(state);
  for (size_t i = 0; i < quantizers_->forward.size(); ++i) {
    quantizers_->forward[i]->set_replay_scale(scales.narrow(0, static_cast<int64_t>(i), 1));
  }
}

ReplayScales::~ReplayScales() {
  if (quantizers_ != nullptr) {
    for (const auto& quantizer : quantizers_->forward) {
      quantizer->set_replay_scale({});
    }
  }
}

}  // namespace transformer_engine::pytorch
