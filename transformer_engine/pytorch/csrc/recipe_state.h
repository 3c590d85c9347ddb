// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Quantization state that every forward reads: the recipe in force (autocast), the delayed-scaling
// buffers of each module and their end-of-step update. Python sees it through
// transformer_engine/pytorch/quantization.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <transformer_engine/cast.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "python_ref.h"

namespace transformer_engine::pytorch {

// What the backward of a quantized forward computes with (a recipe's backward_override).
enum class BackwardMode {
  kQuantized,
  kHighPrecision,  // the operands of the forward as they were before quantization
  kDequantized,    // what the forward's rowwise copies stand for
};

// Which FP8 products may keep partial sums in a tensor core's accumulator (a recipe's
// use_split_accumulator is False).
struct FastAccumulation {
  bool fprop = false;
  bool dgrad = false;
  bool wgrad = false;
};

// What native code needs of a Python recipe. Immutable; equal recipes share one object, so pointers
// compare recipes.
struct Recipe {
  bool is_delayed = false;
  BackwardMode backward = BackwardMode::kQuantized;
  std::string name;  // for messages
  float margin = 0.0F;
  AmaxComputeAlgo amax_algo = AmaxComputeAlgo::kMax;
  bool reduces_amax = true;  // over the ranks of a region's group
  bool is_custom = false;
  bool has_fp8_attention = false;  // or may have: the recipe, or the environment, says so
  bool has_python_update = false;  // a user callable computes amax or scale
  std::shared_ptr<const PythonRef> python_recipe;  // for those callables
  FastAccumulation fast_accumulation;

  // Whether quantizers of modules may have delayed scaling.
  bool may_have_delayed_slots() const { return is_delayed || is_custom || has_fp8_attention; }
};

// The autocast region of this thread. A plain value: regions save and restore it whole.
struct AutocastState {
  bool enabled = false;
  bool calibrating = false;
  bool is_graph = false;      // inside a graph capture: no end-of-step update
  bool reduces_amax = false;  // its group has more than one rank, and the recipe may reduce
  bool first_module = false;  // the next quantized module owns the backward update
  std::shared_ptr<const Recipe> recipe;  // null when Python has not been asked for a default yet
  std::shared_ptr<const PythonRef> recipe_object;
  std::shared_ptr<const PythonRef> group;

  bool is_quantizing() const { return enabled || calibrating; }
};
AutocastState& autocast_state();
int autocast_depth();

// Whether a CUDA graph is being captured, by the caller's word (te.graph); of the whole process, as
// backwards run on threads of their own.
bool is_graph_capturing();
void set_graph_capturing(bool is_capturing);
// The flag that quantizations of weights read inside a region of a graph capture: [1] FP32 on the
// device; not 0 leaves the quantized copies as they are. Undefined: weights are quantized always.
at::Tensor skip_weight_update();
void set_skip_weight_update(at::Tensor flag);

void autocast_enter(AutocastState next);
// Restores the state before the matching enter; at the outermost exit of an enabled region with
// grad mode on, runs the forward update. RuntimeError without a matching enter. A region that is
// left by an error (`has_failed`) takes part in no reduction: the ranks that have not failed will
// learn of it by their next collective, and this one's error is not kept waiting.
void autocast_exit(bool has_failed = false);

// Delayed-scaling buffers of one direction of one module, and when they were last advanced.
class DelayedScalingState : public std::enable_shared_from_this<DelayedScalingState> {
 public:
  // scale [n], amax_history [length, n], FP32, contiguous, same device.
  DelayedScalingState(at::Tensor scale, at::Tensor amax_history,
                      std::shared_ptr<const Recipe> recipe, bool is_forward, float fp8_max);

  void mark_used();  // an amax was (or will be) written in this step
  // Its reductions are those of the region.
  void set_region(const AutocastState& region);
  // Counts an update and keeps the scales it replaces where a recomputation may ask for them.
  void begin_update();
  // Rolls the history and computes the new scales; `reduced_amax` [n] replaces row 0 when defined.
  void update(const at::Tensor& reduced_amax = {});

  // The scales a forward of the past used; ValueError when that is too long ago.
  at::Tensor scale_at(uint64_t version) const;

  at::Tensor scale, amax_history;
  std::shared_ptr<const Recipe> recipe;
  std::string name;  // of the module and its part: tells the states of a rank apart
  // Of the last region that used it. A custom recipe's is not the one its slots scale by.
  std::shared_ptr<const PythonRef> group;
  std::shared_ptr<const Recipe> region_recipe;
  const uint64_t number;  // of no other state of this process, also after its end
  bool is_forward;
  bool reduces_amax = false;
  float fp8_max;
  uint64_t version = 0;            // number of updates so far
  bool keeps_past_scales = false;  // a forward since the last update may be recomputed

 private:
  friend struct UsedStates;
  std::atomic<bool> is_marked_ = false;
  std::deque<std::pair<uint64_t, at::Tensor>> past_scales_;
};

// Makes `state` known to reductions over process groups: every rank must reduce the same set in the
// same order. Held weakly.
void register_delayed_scaling(const std::shared_ptr<DelayedScalingState>& state);
// End of a step: advances every state of that direction that this thread used since the last call.
// With a `region` that reduces amaxes, takes part in its reduction even if none was used.
void update_delayed_scaling(bool is_forward, const AutocastState* region = nullptr);
std::vector<std::shared_ptr<DelayedScalingState>> registered_delayed_scaling(bool is_forward);
void reset_quantization_state();  // fresh state for this thread; forgets registrations

// Called (with the GIL) for states whose update needs Python: user callables and process groups.
// Arguments: list of states, is_forward, (group, recipe name, whether that
// is delayed scaling itself) of a region to reduce or None.
void set_python_update(PythonRef callable);

// True while this thread executes a backward graph: a module forward is then a recomputation.
bool is_in_backward();

// While alive, forwards of this thread neither repeat others nor will be repeated: those of a
// compiled graph, which calls them out of its own order.
struct SingleRun {
  SingleRun();
  ~SingleRun();
  SingleRun(const SingleRun&) = delete;
  SingleRun& operator=(const SingleRun&) = delete;
};

// The backward node in execution.
struct RunningNode {
  uint64_t sequence = 0;  // number of the forward that made it, on `thread`
  uint64_t thread = 0;
  int graph_task = 0;
  bool operator==(const RunningNode&) const = default;
};
RunningNode running_node();

// How the forward now running may come to be repeated by activation recomputation.
enum class Repeatability {
  kNone,
  kByNode,   // it runs without recording inside the forward of a custom function: a checkpoint's
  kByHooks,  // saved-tensor hooks are in force: a checkpoint may recompute what they packed
};
Repeatability repeatability_now();

// The innermost saved-tensor hook in force: its address, or null; and a weak reference to it (null
// where there is none), the same object for the same hook. The GIL is held.
const void* saved_tensor_hook();
std::shared_ptr<const PythonRef> saved_tensor_hook_ref();

// Which run of a checkpointed function this thread is in, as far as the caller says so
// (activation_recompute_forward). The first run of a reentrant checkpoint has grad mode off, but
// regions inside it end a step; those inside a second run do not.
enum class RecomputePhase { kNone = 0, kFirstRun = 1, kSecondRun = 2 };
void set_recompute_phase(RecomputePhase phase);

}  // namespace transformer_engine::pytorch
