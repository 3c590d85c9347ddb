// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A step whose arithmetic is Python's: module._quantized_forward(call, *args, **kwargs). What
// belongs to quantization around it (quantizers of the recipe in force, scales of the past when a
// checkpoint repeats the forward, the end of delayed scaling's steps) is that of every step.
#pragma once

#include "steps/module_step.h"

namespace transformer_engine::pytorch {

// What one forward of a PythonStep, and later its backward, know of quantization.
class QuantizedCall {
 public:
  explicit QuantizedCall(CallState state) : state_(std::move(state)) {}

  const CallState& state() const { return state_; }
  // [slots] of delayed scaling; undefined where the recipe has none.
  at::Tensor forward_scales() const;
  // By slot, of the recipe in force when the forward began; empty without quantization.
  std::vector<std::shared_ptr<Quantizer>> forward_quantizers() const;
  std::vector<std::shared_ptr<Quantizer>> backward_quantizers() const;

 private:
  CallState state_;
};

class PythonStep : public ModuleStep {
 public:
  explicit PythonStep(std::string name) : ModuleStep(std::move(name)) {}

 protected:
  PyObject* forward(PyObject* module, PyObject* args, PyObject* kwargs) override;
};

}  // namespace transformer_engine::pytorch
