// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "recipe_state.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>
#include <transformer_engine/error.h>

#include <algorithm>
#include <mutex>

#include "views.h"

namespace transformer_engine::pytorch {

namespace {

constexpr size_t kPastScales = 256;

struct ThreadState {
  AutocastState current;
  std::vector<AutocastState> outer;
};
thread_local ThreadState thread_state;

// Modules of several threads may register and update at the same time.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<DelayedScalingState>> all[2];
  std::vector<std::weak_ptr<DelayedScalingState>> used[2];
  PythonRef python_update;
};

Registry& registry() {
  static auto* const instance =
      new Registry;  // never destroyed: modules may outlive static destruction
  return *instance;
}

void call_python_update(const std::vector<std::shared_ptr<DelayedScalingState>>& states,
                        bool is_forward) {
  const pybind11::gil_scoped_acquire gil;
  PyObject* const callable = registry().python_update.get();
  TE_CHECK_AS(RuntimeError, callable != nullptr,
              "delayed scaling: the Python update is not registered; import "
              "transformer_engine.pytorch first.");
  pybind11::list list;
  for (const auto& state : states) {
    list.append(state);
  }
  const pybind11::handle update(callable);
  update(list, is_forward);
}

}  // namespace

AutocastState& autocast_state() { return thread_state.current; }
int autocast_depth() { return static_cast<int>(thread_state.outer.size()); }

void autocast_enter(AutocastState next) {
  next.first_module = thread_state.outer.empty() || thread_state.current.first_module;
  thread_state.outer.push_back(std::move(thread_state.current));
  thread_state.current = std::move(next);
}

void autocast_exit() {
  TE_CHECK_AS(RuntimeError, !thread_state.outer.empty(),
              "autocast: exit without a matching enter; leave each region once.");
  const AutocastState left = std::move(thread_state.current);
  thread_state.current = std::move(thread_state.outer.back());
  thread_state.outer.pop_back();
  // Within one outermost region only one module owns the backward update.
  thread_state.current.first_module = !thread_state.outer.empty() && left.first_module;
  if (thread_state.outer.empty() && left.enabled && !left.is_graph && at::GradMode::is_enabled()) {
    update_delayed_scaling(/*is_forward=*/true);
  }
}

DelayedScalingState::DelayedScalingState(at::Tensor scale_in, at::Tensor history_in,
                                         std::shared_ptr<const Recipe> recipe_in, bool forward,
                                         float max)
    : scale(std::move(scale_in)),
      amax_history(std::move(history_in)),
      recipe(std::move(recipe_in)),
      is_forward(forward),
      fp8_max(max) {
  TE_CHECK(amax_history.dim() == 2 && amax_history.size(0) > 0 &&
               scale.numel() == amax_history.size(1) && scale.scalar_type() == at::kFloat &&
               amax_history.scalar_type() == at::kFloat && scale.is_contiguous() &&
               amax_history.is_contiguous(),
           "DelayedScalingState: scale has shape ", scale.sizes(), " and amax_history ",
           amax_history.sizes(), "; contiguous float32 [n] and [length >= 1, n] are required.");
}

void DelayedScalingState::mark_used() {
  if (is_marked_) {
    return;
  }
  is_marked_ = true;
  auto& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.used[is_forward ? 1 : 0].push_back(weak_from_this());
}

void DelayedScalingState::begin_update() {
  if (keeps_past_scales) {
    past_scales_.emplace_back(version, scale.clone());
    if (past_scales_.size() > kPastScales) {
      past_scales_.pop_front();
    }
    keeps_past_scales = false;
  }
  ++version;
}

void DelayedScalingState::update(const at::Tensor& reduced_amax) {
  begin_update();
  DelayedScalingUpdateArgs args;
  args.amax_history = matrix_view(amax_history);
  args.reduced_amax = float_data(reduced_amax, "delayed_scaling_update: reduced_amax");
  args.scale = float_data(scale, "delayed_scaling_update: scale");
  args.fp8_max = fp8_max;
  args.margin = recipe->margin;
  args.algo = recipe->amax_algo;
  delayed_scaling_update(args, context_for(scale));
}

at::Tensor DelayedScalingState::scale_at(uint64_t wanted) const {
  if (wanted == version) {
    return scale;
  }
  for (const auto& [past, past_scale] : past_scales_) {
    if (past == wanted) {
      return past_scale;
    }
  }
  throw RuntimeError(
      concat("recompute: the delayed-scaling scales of ", version - wanted,
             " updates ago are needed; only those of the last ", kPastScales,
             " recomputable forwards are kept. Run backward sooner after its forward."));
}

void register_delayed_scaling(const std::shared_ptr<DelayedScalingState>& state) {
  auto& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto& known = all.all[state->is_forward ? 1 : 0];
  std::erase_if(known, [&](const auto& weak) { return weak.expired() || weak.lock() == state; });
  known.push_back(state);
}

std::vector<std::shared_ptr<DelayedScalingState>> registered_delayed_scaling(bool is_forward) {
  auto& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<std::shared_ptr<DelayedScalingState>> result;
  for (const auto& weak : all.all[is_forward ? 1 : 0]) {
    if (auto state = weak.lock()) {
      result.push_back(std::move(state));
    }
  }
  return result;
}

void update_delayed_scaling(bool is_forward) {
  std::vector<std::shared_ptr<DelayedScalingState>> python_states;
  {
    auto& all = registry();
    std::vector<std::weak_ptr<DelayedScalingState>> used;
    {
      const std::lock_guard<std::mutex> lock(all.mutex);
      used.swap(all.used[is_forward ? 1 : 0]);
    }
    for (const auto& weak : used) {
      const auto state = weak.lock();
      if (state == nullptr) {
        continue;
      }
      state->is_marked_ = false;
      if (state->recipe->has_python_update || state->reduces_amax) {
        python_states.push_back(state);
      } else {
        state->update();
      }
    }
  }
  if (!python_states.empty()) {
    call_python_update(python_states, is_forward);
  }
}

void reset_quantization_state() {
  thread_state = ThreadState{};
  auto& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto* list : {&all.all[0], &all.all[1], &all.used[0], &all.used[1]}) {
    list->clear();
  }
}

void set_python_update(PythonRef callable) { registry().python_update = std::move(callable); }

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

uint64_t running_node_sequence() {
  const auto node = torch::autograd::get_current_node();
  return node ? node->sequence_nr() : at::sequence_number::peek();
}

bool may_be_recomputed() {
  if (c10::InferenceMode::is_enabled()) {
    return false;
  }
  return !at::GradMode::is_enabled() || at::SavedTensorDefaultHooks::get_hooks().has_value();
}

}  // namespace transformer_engine::pytorch
