// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What every module's step shares: its quantizers for the recipe in force, and repeating a past
// forward when activation recomputation runs it again.
#pragma once

#include <deque>
#include <memory>
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
  bool owns_backward_update = false;
  std::shared_ptr<const QuantizerSet> quantizers;  // null when neither quantized nor calibrating
  uint64_t scale_version = 0;
};

// A forward that may be repeated, as the repetition needs it.
struct ForwardRecord {
  uint64_t sequence = 0;  // autograd sequence number (of `thread`) when the forward ran
  uint64_t thread = 0;
  // Null: ran without recording inside a checkpoint's own node. Else a weak reference to the
  // saved-tensor hook it ran under; one checkpointed region has one hook.
  std::shared_ptr<const PythonRef> hook;
  CallState state;
};

// The last forwards of one module that may be recomputed.
class RecomputeLog {
 public:
  void push(ForwardRecord record);
  // The forward that the one now running inside a backward repeats; null when it repeats none. To
  // be called once for each forward.
  const ForwardRecord* next_repeated();

 private:
  // Where one run of a recomputation stands among the records.
  struct Run {
    RunningNode node;
    const void* hook = nullptr;
    size_t next = 0;  // absolute: index in records_ plus dropped_
  };
  const ForwardRecord* next_of_node(const RunningNode& node);
  const ForwardRecord* next_under_hook(const RunningNode& node, const void* hook);
  Run& find_run(const RunningNode& node, const void* hook, bool* is_new);

  static constexpr size_t kCapacity = 512;  // pipeline stages keep fewer micro-batches in flight
  std::deque<ForwardRecord> records_;
  size_t dropped_ = 0;     // records that fell out at the front
  std::vector<Run> runs_;  // of the graph task in execution
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

  // The linear layers inside, in order of use (for delayed weight gradients).
  virtual std::vector<class LinearPart*> linear_parts() { return {}; }

  const std::string& name() const { return name_; }  // "Linear.forward", for messages

 protected:
  // One forward, with the GIL held at entry and exit. Returns a new reference.
  virtual PyObject* forward(PyObject* module, PyObject* args, PyObject* kwargs) = 0;

  // Reads the autocast region (or the record of the forward being repeated) and makes sure of the
  // quantizers for it, by module._make_quantizers(recipe) when the recipe is another one than last
  // time.
  CallState begin_forward(PyObject* module);
  // To be called once the forward has computed; `has_node` when it will be differentiated.
  void end_forward(CallState& state, bool has_node);

 private:
  void ensure_quantizers(PyObject* module, const AutocastState& autocast);

  std::string name_;
  std::shared_ptr<const QuantizerSet> quantizers_;
  RecomputeLog recompute_log_;
  bool was_quantized_ = false;
  bool was_calibrating_ = false;
};

// End of a node's backward: marks its delayed-scaling state used, and advances the backward states
// when the node's forward was the first quantized module of its region.
void finish_backward(const CallState& state);

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
