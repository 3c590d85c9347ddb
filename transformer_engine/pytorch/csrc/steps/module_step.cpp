// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/module_step.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <transformer_engine/error.h>

#include <algorithm>

#include "steps/linear_part.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

void RecomputeLog::push(ForwardRecord record) {
  records_.push_back(std::move(record));
  if (records_.size() > kCapacity) {
    records_.pop_front();
    ++dropped_;
  }
}

RecomputeLog::Run& RecomputeLog::find_run(const RunningNode& node, const void* hook, bool* is_new) {
  if (!runs_.empty() && runs_.front().node.graph_task != node.graph_task) {
    runs_.clear();
  }
  for (Run& run : runs_) {
    if (run.node == node && run.hook == hook) {
      *is_new = false;
      return run;
    }
  }
  *is_new = true;
  return runs_.emplace_back(Run{.node = node, .hook = hook});
}

// A reentrant checkpoint: its node took its sequence number before the forwards inside it ran, and
// every forward of the repetition stands for the next one after it.
const ForwardRecord* RecomputeLog::next_of_node(const RunningNode& node) {
  bool is_new = false;
  Run& run = find_run(node, nullptr, &is_new);
  for (size_t i = is_new || run.next < dropped_ ? 0 : run.next - dropped_; i < records_.size();
       ++i) {
    const ForwardRecord& record = records_[i];
    if (record.hook == nullptr && record.thread == node.thread && record.sequence > node.sequence) {
      run.next = dropped_ + i + 1;
      return &record;
    }
  }
  return nullptr;
}

// A checkpoint by saved-tensor hooks: the running node is one of those that the region's forwards
// made. The region is that of the last record at or before it.
const ForwardRecord* RecomputeLog::next_under_hook(const RunningNode& node, const void* hook) {
  bool is_new = false;
  Run& run = find_run(node, hook, &is_new);
  const auto is_candidate = [&](const ForwardRecord& record) {
    return record.hook != nullptr && record.thread == node.thread;
  };
  if (is_new) {
    const ForwardRecord* found = nullptr;
    for (size_t i = 0; i < records_.size(); ++i) {
      if (is_candidate(records_[i]) && records_[i].sequence <= node.sequence) {
        // The first record of a region; that of the last region wins.
        if (found == nullptr || found->hook->get() != records_[i].hook->get()) {
          run.next = dropped_ + i;
        }
        found = &records_[i];
      }
    }
    if (found == nullptr) {
      const auto any = std::find_if(records_.begin(), records_.end(), is_candidate);
      run.next = dropped_ + static_cast<size_t>(any - records_.begin());
    }
  }
  if (run.next < dropped_ || run.next >= dropped_ + records_.size()) {
    return nullptr;
  }
  const ForwardRecord& record = records_[run.next - dropped_];
  // The next one of the same region, or this one again when the region has no more.
  for (size_t i = run.next + 1 - dropped_; i < records_.size(); ++i) {
    if (is_candidate(records_[i]) && records_[i].hook->get() == record.hook->get()) {
      run.next = dropped_ + i;
      break;
    }
  }
  return &record;
}

const ForwardRecord* RecomputeLog::next_repeated() {
  const RunningNode node = running_node();
  const void* const hook = saved_tensor_hook();
  const ForwardRecord* const repeated = hook != nullptr ? next_under_hook(node, hook) : nullptr;
  return repeated != nullptr ? repeated : next_of_node(node);
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
  const ForwardRecord* const repeated = is_in_backward() ? recompute_log_.next_repeated() : nullptr;
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
      for (auto* const direction : {&forward_state, state.quantizers->backward_state.get()}) {
        direction->group = autocast.group;
        direction->reduces_amax = autocast.reduces_amax;
      }
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
  const Repeatability repeatability = repeatability_now();
  const bool may_be_repeated = repeatability != Repeatability::kNone;
  if (may_be_repeated) {
    // Repetitions too: a checkpoint inside a checkpoint repeats them once more.
    recompute_log_.push(
        {.sequence = at::sequence_number::peek() - (has_node ? 1 : 0),
         .thread = at::RecordFunction::currentThreadId(),
         .hook = repeatability == Repeatability::kByHooks ? saved_tensor_hook_ref() : nullptr,
         .state = state});
  }
  if (state.is_replay) {
    return;
  }
  if (may_be_repeated && state.quantizers != nullptr &&
      state.quantizers->forward_state != nullptr) {
    state.quantizers->forward_state->keeps_past_scales = true;
  }
  if (state.owns_backward_update && (has_node || may_be_repeated)) {
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
  const auto linears = linear_parts();
  const auto old_linears = previous.linear_parts();
  for (size_t i = 0; i < std::min(linears.size(), old_linears.size()); ++i) {
    linears[i]->share_wgrad_store(*old_linears[i]);
  }
}

void finish_backward(const CallState& state) {
  if (!state.is_quantized || state.quantizers->backward_state == nullptr) {
    return;
  }
  DelayedScalingState& backward_state = *state.quantizers->backward_state;
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
