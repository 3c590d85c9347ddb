// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// te.LayerNormMLP: norm, linear, activation, linear.
//   forward:  x -> norm -> quantize? -> gather? -> fc1 -> activation (+ quantize) -> fc2 -> sum
//   over ranks? backward: dy -> gather? -> fc2 dgrad, wgrad -> activation backward (+ bias
//   gradient, + quantize)
//   -> fc1 dgrad -> sum over ranks?, wgrad -> norm backward
#pragma once

#include <transformer_engine/activation.h>

#include "steps/linear_part.h"
#include "steps/module_step.h"
#include "steps/norm_part.h"
#include "steps/sharded_linear.h"

namespace transformer_engine::pytorch {

struct NormMLPStepSpec {
  std::string name;  // "LayerNormMLP.forward"
  NormSpec norm;
  LinearSpec fc1, fc2;
  ActivationKind activation = ActivationKind::kGELU;
  ActivationParams activation_params;
  bool return_bias = false;
  bool return_layernorm_output = false;
  bool return_layernorm_output_gathered = false;  // where ranks gather it: of all their rows
  bool recomputes = false;  // keep only the input; norm, fc1 and activation run again in backward

  bool returns_gathered() const {
    return return_layernorm_output && return_layernorm_output_gathered &&
           fc1.sharding.gathers_input();
  }
};

class NormMLPStep : public ModuleStep {
 public:
  explicit NormMLPStep(NormMLPStepSpec spec);

  std::vector<LinearPart*> linear_parts() override { return {fc1_.get(), fc2_.get()}; }

 protected:
  PyObject* forward(PyObject* module, PyObject* args, PyObject* kwargs) override;

 private:
  struct Call;
  void read_call(Call& call, PyObject* module, PyObject* args, PyObject* kwargs);
  at::Tensor compute(Call& call);
  void record(Call& call, const at::Tensor& output);

  NormMLPStepSpec spec_;
  std::shared_ptr<LinearPart> fc1_, fc2_;
};

}  // namespace transformer_engine::pytorch
