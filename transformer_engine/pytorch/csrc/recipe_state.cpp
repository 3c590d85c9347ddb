// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "recipe_state.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/graph_task.h>
#include <transformer_engine/error.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "autograd_node.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

constexpr size_t kPastScales = 512;

struct ThreadState {
  AutocastState current;
  std::vector<AutocastState> outer;
  RecomputePhase recompute_phase = RecomputePhase::kNone;
};
thread_local ThreadState thread_state;

// Modules of several threads may register at the same time.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<DelayedScalingState>> all[2];
  PythonRef python_update;
};

Registry& registry() {
  static auto* const instance =
      new Registry;  // never destroyed: modules may outlive static destruction
  return *instance;
}

bool wants_unfused_update() {
  const char* const text = std::getenv("NVTE_UNFUSED_FP8_UPDATE");
  return text != nullptr && std::string_view(text) != "0";  // Python checks the text
}

}  // namespace

using StateList = std::vector<std::weak_ptr<DelayedScalingState>>;

// States used since their last update. On the CPU a thread runs its own forwards and backwards, so
// that each has its steps; a GPU's backward runs on threads of autograd's, hence one list for all.
struct UsedStates {
  std::mutex mutex;
  StateList lists[2];  // backward, forward

  ~UsedStates() { clear(); }
  void clear() {
    for (StateList& list : lists) {
      for (const auto& state : take(&list)) {
        state->is_marked_ = false;
      }
    }
  }
  void add(DelayedScalingState& state) {
    if (!state.is_marked_.exchange(true)) {
      const std::lock_guard<std::mutex> lock(mutex);
      lists[state.is_forward ? 1 : 0].push_back(state.weak_from_this());
    }
  }
  // Those still alive, unmarked.
  std::vector<std::shared_ptr<DelayedScalingState>> take(StateList* list) {
    StateList taken;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      taken.swap(*list);
    }
    std::vector<std::shared_ptr<DelayedScalingState>> alive;
    for (const auto& weak : taken) {
      if (auto state = weak.lock()) {
        state->is_marked_ = false;
        alive.push_back(std::move(state));
      }
    }
    return alive;
  }
};

namespace {

UsedStates& used_by_thread() {
  thread_local UsedStates used;
  return used;
}

UsedStates& used_on_gpus() {
  static auto* const instance = new UsedStates;
  return *instance;
}

void call_python_update(const std::vector<std::shared_ptr<DelayedScalingState>>& states,
                        bool is_forward, const AutocastState* region) {
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
  pybind11::object reduced = pybind11::none();
  if (region != nullptr) {
    PyObject* const group = region->group != nullptr ? region->group->get() : Py_None;
    reduced = pybind11::make_tuple(pybind11::handle(group), region->recipe->name,
                                   region->recipe->is_delayed);
  }
  update(list, is_forward, reduced);
}

}  // namespace

namespace {

// Whether leaving the outermost region here is the end of a training step's forward.
bool ends_a_step() {
  switch (thread_state.recompute_phase) {
    case RecomputePhase::kFirstRun:
      return at::GradMode::is_enabled() || repeatability_now() == Repeatability::kByNode;
    case RecomputePhase::kSecondRun:
      return false;
    case RecomputePhase::kNone:
      break;
  }
  return at::GradMode::is_enabled();
}

}  // namespace

void set_recompute_phase(RecomputePhase phase) { thread_state.recompute_phase = phase; }

namespace {

std::atomic<bool> graph_is_capturing = false;

struct SkipFlag {
  std::mutex mutex;
  at::Tensor tensor;
};
SkipFlag& skip_flag() {
  static auto* const instance = new SkipFlag;  // never destroyed: it may hold device memory
  return *instance;
}

}  // namespace

bool is_graph_capturing() { return graph_is_capturing; }
void set_graph_capturing(bool is_capturing) { graph_is_capturing = is_capturing; }

at::Tensor skip_weight_update() {
  SkipFlag& flag = skip_flag();
  const std::lock_guard<std::mutex> lock(flag.mutex);
  return flag.tensor;
}

void set_skip_weight_update(at::Tensor tensor) {
  TE_CHECK(!tensor.defined() || (tensor.numel() == 1 && tensor.scalar_type() == at::kFloat),
           "set_skip_weight_update: flag has shape ", tensor.sizes(), " and dtype ",
           at::toString(tensor.scalar_type()), "; float32 [1] is required.");
  SkipFlag& flag = skip_flag();
  const std::lock_guard<std::mutex> lock(flag.mutex);
  flag.tensor = std::move(tensor);
}

AutocastState& autocast_state() { return thread_state.current; }
int autocast_depth() { return static_cast<int>(thread_state.outer.size()); }

void autocast_enter(AutocastState next) {
  next.first_module = thread_state.outer.empty() || thread_state.current.first_module;
  thread_state.outer.push_back(std::move(thread_state.current));
  thread_state.current = std::move(next);
}

void autocast_exit(bool has_failed) {
  TE_CHECK_AS(RuntimeError, !thread_state.outer.empty(),
              "autocast: exit without a matching enter; leave each region once.");
  const AutocastState left = std::move(thread_state.current);
  thread_state.current = std::move(thread_state.outer.back());
  thread_state.outer.pop_back();
  // Within one outermost region only one module owns the backward update.
  thread_state.current.first_module = !thread_state.outer.empty() && left.first_module;
  if (has_failed && left.reduces_amax) {
    return;
  }
  if (thread_state.outer.empty() && left.enabled && !left.is_graph && ends_a_step()) {
    update_delayed_scaling(/*is_forward=*/true, left.reduces_amax ? &left : nullptr);
  }
}

namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> count = 0;
  return count++;
}

}  // namespace

DelayedScalingState::DelayedScalingState(at::Tensor scale_in, at::Tensor history_in,
                                         std::shared_ptr<const Recipe> recipe_in, bool forward,
                                         float max)
    : scale(std::move(scale_in)),
      amax_history(std::move(history_in)),
      recipe(std::move(recipe_in)),
      number(next_number()),
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
  (scale.is_cpu() ? used_by_thread() : used_on_gpus()).add(*this);
}

void DelayedScalingState::set_region(const AutocastState& region) {
  group = region.group;
  region_recipe = region.recipe;
  reduces_amax = region.reduces_amax && recipe->reduces_amax;
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

void update_delayed_scaling(bool is_forward, const AutocastState* region) {
  std::vector<std::shared_ptr<DelayedScalingState>> python_states;
  const bool is_unfused = wants_unfused_update();
  for (UsedStates* const used : {&used_by_thread(), &used_on_gpus()}) {
    for (auto& state : used->take(&used->lists[is_forward ? 1 : 0])) {
      if (state->recipe->has_python_update || state->reduces_amax || is_unfused) {
        python_states.push_back(std::move(state));
      } else {
        state->update();
      }
    }
  }
  if (!python_states.empty() || region != nullptr) {
    call_python_update(python_states, is_forward, region);
  }
}

void reset_quantization_state() {
  thread_state = ThreadState{};
  used_by_thread().clear();
  used_on_gpus().clear();
  set_graph_capturing(false);
  set_skip_weight_update({});
  auto& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.all[0].clear();
  all.all[1].clear();
}

void set_python_update(PythonRef callable) { registry().python_update = std::move(callable); }

namespace {
thread_local int single_runs = 0;
}

SingleRun::SingleRun() { ++single_runs; }
SingleRun::~SingleRun() { --single_runs; }

bool is_in_backward() {
  return single_runs == 0 && torch::autograd::get_current_graph_task_id() != -1;
}

RunningNode running_node() {
  RunningNode running{.graph_task = torch::autograd::get_current_graph_task_id()};
  if (const auto node = torch::autograd::get_current_node()) {
    running.sequence = node->sequence_nr();
    running.thread = node->thread_id();
  }
  return running;
}

Repeatability repeatability_now() {
  if (single_runs > 0 || c10::InferenceMode::is_enabled()) {
    return Repeatability::kNone;
  }
  if (!at::GradMode::is_enabled()) {
    // torch.no_grad() leaves forward-mode derivatives on; the forward of a custom function has both
    // off.
    const bool is_inside_function = !c10::AutogradState::get_tls_state().get_fw_grad_mode();
    return is_inside_function ? Repeatability::kByNode : Repeatability::kNone;
  }
  return at::SavedTensorDefaultHooks::get_hooks().has_value() ? Repeatability::kByHooks
                                                              : Repeatability::kNone;
}

namespace {

PyObject* innermost_hook() {
  const auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  return hooks.has_value() ? hooks->first.ptr(getPyInterpreter()) : nullptr;
}

}  // namespace

const void* saved_tensor_hook() { return innermost_hook(); }

std::shared_ptr<const PythonRef> saved_tensor_hook_ref() {
  PyObject* const hook = innermost_hook();
  if (hook == nullptr) {
    return nullptr;
  }
  // Python gives out one weak reference per object while that reference lives.
  PyObject* const weak = PyWeakref_NewRef(hook, nullptr);
  if (weak == nullptr) {
    PyErr_Clear();  // a kind of callable without weak references: stands for itself
    return std::make_shared<const PythonRef>(hook);
  }
  auto result = std::make_shared<const PythonRef>(weak);
  Py_DECREF(weak);
  return result;
}

}  // namespace transformer_engine::pytorch
