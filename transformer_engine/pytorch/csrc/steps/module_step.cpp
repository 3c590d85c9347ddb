// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/module_step.h"

#include <ATen/SequenceNumber.h>
#include <transformer_engine/error.h>

#include <algorithm>

namespace py = pybind11;

namespace transformer_engine::pytorch {

void RecomputeLog::push(ForwardRecord record) {
  records_.push_back(std::move(record));
  if (records_.size() > kCapacity) {
    records_.pop_front();
  }
}

const ForwardRecord* RecomputeLog::find(uint64_t node_sequence) const {
  // A reentrant checkpoint's node takes its number just before the forwards inside it run (they
  // create no node, so they all see that number plus one). Under saved-tensor hooks the running
  // node is one of the region's own, created after those forwards began. Either way the last
  // forward at or before node_sequence + 1 is the one being repeated.
  const auto found = std::find_if(records_.rbegin(), records_.rend(), [&](const auto& record) {
    return record.sequence <= node_sequence + 1;
  });
  if (found != records_.rend()) {
    return &*found;
  }
  return records_.empty() ? nullptr : &records_.front();
}

PyObject* ModuleStep::call(PyObject* module, PyObject* args, PyObject* kwargs) {
  return translate_exceptions([&] { return forward(module, args, kwargs); });
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

CallState ModuleStep::begin_forward(PyObject* module) {
  CallState state;
  const ForwardRecord* const repeated =
      is_in_backward() ? recompute_log_.find(running_node_sequence()) : nullptr;
  if (repeated != nullptr) {
    state = repeated->state;
    state.is_replay = true;
  } else {
    const AutocastState& autocast = autocast_state();
    state.is_quantized = autocast.enabled;
    state.is_calibrating = autocast.calibrating && !autocast.enabled;
    if (autocast.is_quantizing()) {
      ensure_quantizers(module, autocast);
      state.quantizers = quantizers_;
    }
    if (state.quantizers != nullptr && state.quantizers->forward_state != nullptr) {
      DelayedScalingState& forward_state = *state.quantizers->forward_state;
      forward_state.group = autocast.group;
      forward_state.reduces_amax = autocast.reduces_amax;
      state.scale_version = forward_state.version;
      state.owns_backward_update = state.is_quantized && autocast.first_module;
      if (state.is_quantized) {
        forward_state.mark_used();
      }
    }
  }
  was_quantized_ = state.is_quantized;
  was_calibrating_ = state.is_calibrating;
  return state;
}

void ModuleStep::end_forward(CallState& state, bool has_node) {
  if (state.is_replay) {
    return;
  }
  const bool is_recorded = may_be_recomputed();
  if (is_recorded) {
    if (state.quantizers != nullptr && state.quantizers->forward_state != nullptr) {
      state.quantizers->forward_state->keeps_past_scales = true;
    }
    recompute_log_.push(
        {.sequence = at::sequence_number::peek() - (has_node ? 1 : 0), .state = state});
  }
  if (state.owns_backward_update && (has_node || is_recorded)) {
    autocast_state().first_module = false;
  }
}

void finish_backward(const CallState& state) {
  if (!state.is_quantized || state.quantizers->backward_state == nullptr) {
    return;
  }
  DelayedScalingState& backward_state = *state.quantizers->backward_state;
  backward_state.group = state.quantizers->forward_state->group;
  backward_state.reduces_amax = state.quantizers->forward_state->reduces_amax;
  backward_state.mark_used();
  if (state.owns_backward_update) {
    update_delayed_scaling(/*is_forward=*/false);
  }
}

ReplayScales::ReplayScales(const CallState& state) {
  if (!state.is_replay || state.quantizers == nullptr ||
      state.quantizers->forward_state == nullptr) {
    return;
  }
  quantizers_ = state.quantizers.get();
  const at::Tensor scales = quantizers_->forward_state->scale_at(state.scale_version);
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
