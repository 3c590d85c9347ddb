// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What every module's step shares: its quantizers for the recipe in force, and repeating a past
// forward when activation recomputation runs it again.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quantizer.h"
#include "recipe_state.h"
#include "step_module.h"
#include "steps/python_call.h"

namespace transformer_engine::pytorch {

// The quantizers of one module for one recipe. Nodes keep the set of their forward alive.
struct QuantizerSet {
  std::shared_ptr<const Recipe> recipe;
  std::vector<std::shared_ptr<Quantizer>> forward;   // per GEMM: input, weight, output
  std::vector<std::shared_ptr<Quantizer>> backward;  // per GEMM: grad_output, grad_input
  std::shared_ptr<DelayedScalingState> forward_state, backward_state;  // delayed scaling only

  Quantizer& input(int gemm) const { return *forward[3 * gemm]; }
  Quantizer& weight(int gemm) const { return *forward[3 * gemm + 1]; }
  Quantizer& output(int gemm) const { return *forward[3 * gemm + 2]; }
  Quantizer& grad_output(int gemm) const { return *backward[2 * gemm]; }
  Quantizer& grad_input(int gemm) const { return *backward[2 * gemm + 1]; }
};

// What one forward knows about quantization before it computes.
struct CallState {
  bool is_quantized = false;    // inside an enabled autocast region
  bool is_calibrating = false;  // high precision, but amax is observed
  bool is_replay = false;       // activation recomputation repeats a past forward
  bool is_graph = false;        // inside a graph capture: replays end steps, this does not
  bool owns_backward_update = false;
  std::shared_ptr<const QuantizerSet> quantizers;  // null when neither quantized nor calibrating
  uint64_t scale_version = 0;
  // Inside a graph capture, where replays change the scales between a forward and the backward that
  // repeats it: the forward's own.
  std::shared_ptr<const at::Tensor> graph_scales;

  // Of a quantized forward.
  BackwardMode backward_mode() const {
    return is_quantized ? quantizers->recipe->backward : BackwardMode::kQuantized;
  }
  bool quantizes_backward() const {
    return is_quantized && backward_mode() == BackwardMode::kQuantized;
  }
  FastAccumulation fast_accumulation() const {
    return is_quantized ? quantizers->recipe->fast_accumulation : FastAccumulation{};
  }
  bool has_scales() const { return quantizers != nullptr && quantizers->forward_state != nullptr; }
  bool operator==(const CallState&) const = default;
};

// Consecutive forwards that may be repeated and are alike: of one checkpointed region, in one
// state.
struct ForwardRecord {
  // Number (of `thread`) of the autograd node that repeats them: the checkpoint's own when they ran
  // without recording inside it, else their own (of the first of them).
  uint64_t node = 0;
  uint64_t thread = 0;
  bool is_inside_node = false;
  // A weak reference to the innermost saved-tensor hook in force, or null. A region that is
  // recomputed by hooks has one hook.
  std::shared_ptr<const PythonRef> hook;
  CallState state;
  size_t count = 1;

  bool is_like(const ForwardRecord& next) const;
  bool has_hook_of(const ForwardRecord& other) const {
    return (hook != nullptr ? hook->get() : nullptr) ==
           (other.hook != nullptr ? other.hook->get() : nullptr);
  }
};

// The last forwards of one module that may be recomputed.
class RecomputeLog {
 public:
  void push(ForwardRecord record);
  // The forward that the one now running inside a backward repeats; null when it repeats none. To
  // be called once for each forward. RuntimeError when its scales are needed and forgotten.
  const ForwardRecord* next_repeated();

 private:
  // One recomputation: the records it repeats, in order, and how far it is.
  struct Run {
    RunningNode node;
    const void* hook = nullptr;  // null when the node repeats
    std::deque<ForwardRecord> records;
    size_t done = 0;  // forwards of records.front() repeated so far
  };
  bool is_repeated_by_node(const RunningNode& node, const void* hook) const;
  std::deque<ForwardRecord> records_after_node(const RunningNode& node) const;
  std::deque<ForwardRecord> records_under_hook(const RunningNode& node) const;

  static constexpr size_t kCapacity = 512;  // pipeline stages keep fewer micro-batches in flight
  std::deque<ForwardRecord> records_;
  std::optional<ForwardRecord> last_dropped_;  // the newest that fell out at the front
  std::vector<Run> runs_;                      // of the graph task in execution
};

class ModuleStep : public Step {
 public:
  explicit ModuleStep(std::string name) : name_(std::move(name)) {}

  PyObject* call(PyObject* module, PyObject* args, PyObject* kwargs) final;

  void set_quantizers(std::shared_ptr<const QuantizerSet> quantizers) {
    quantizers_ = std::move(quantizers);
  }
  const std::shared_ptr<const QuantizerSet>& quantizers() const { return quantizers_; }

  // Takes over what calls left in the step that this one replaces: attributes of the module
  // changed.
  void inherit(ModuleStep& previous);

  // Of the latest forward; the module's attributes `fp8` and `fp8_calibration`.
  bool was_quantized() const { return was_quantized_; }
  bool was_calibrating() const { return was_calibrating_; }
  // Of the latest forward with GEMMs: nothing before.
  std::optional<at::ScalarType> activation_dtype() const { return activation_dtype_; }

  // The linear layers inside, in order of use (for delayed weight gradients).
  virtual std::vector<class LinearPart*> linear_parts() { return {}; }

  const std::string& name() const { return name_; }  // "Linear.forward", for messages

 protected:
  // One forward, with the GIL held at entry and exit. Returns a new reference.
  virtual PyObject* forward(PyObject* module, PyObject* args, PyObject* kwargs) = 0;

  // The module's formula out of torch's operators (module._composed_forward), for tensors and
  // transforms that a native step cannot serve. NotImplementedError inside a quantized region.
  PyObject* composed_forward(PyObject* module, PyObject* args, PyObject* kwargs,
                             const std::string& reason) const;

  // Reads the autocast region (or the record of the forward being repeated) and makes sure of the
  // quantizers for it, by module._make_quantizers(recipe) when the recipe is another one than last
  // time.
  // `dtype` of the activations.
  CallState begin_forward(PyObject* module, at::ScalarType dtype);
  // To be called once the forward has computed; `has_node` when it will be differentiated,
  // `wants_gradient` when any tensor of it requires a gradient, recorded now or not. `first_node`:
  // number of the first of several nodes; by default there is one, the latest.
  void end_forward(CallState& state, bool has_node, bool wants_gradient,
                   std::optional<uint64_t> first_node = std::nullopt);

 private:
  void ensure_quantizers(PyObject* module, const AutocastState& autocast);

  std::string name_;
  std::shared_ptr<const QuantizerSet> quantizers_;
  RecomputeLog recompute_log_;
  bool was_quantized_ = false;
  bool was_calibrating_ = false;
  std::optional<at::ScalarType> activation_dtype_;
};

// End of a node's backward: marks its delayed-scaling state used, and advances the backward states
// when the node's forward was the first quantized module of its region.
void finish_backward(const CallState& state);

// [slots]: the scales of the forward that runs, or that it repeats; of delayed scaling.
at::Tensor forward_scales(const CallState& state);

// While alive, casts of the set's forward quantizers use the scales of `state`'s original forward
// and observe nothing.
class ReplayScales {
 public:
  explicit ReplayScales(const CallState& state);
  ~ReplayScales();
  ReplayScales(const ReplayScales&) = delete;
  ReplayScales& operator=(const ReplayScales&) = delete;

 private:
  const QuantizerSet* quantizers_ = nullptr;
};

}  // namespace transformer_engine::pytorch
