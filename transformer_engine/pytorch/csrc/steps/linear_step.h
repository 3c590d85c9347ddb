// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// te.Linear and te.LayerNormLinear: an optional norm, then one linear layer.
//   forward:  x -> norm? -> quantize? -> gather? -> fprop -> sum over ranks?
//   backward: dy -> bias gradient + quantize? -> gather? -> dgrad -> sum over ranks?, wgrad -> norm
//   backward?
#pragma once

#include <optional>

#include "steps/linear_part.h"
#include "steps/module_step.h"
#include "steps/norm_part.h"
#include "steps/sharded_linear.h"

namespace transformer_engine::pytorch {

struct LinearStepSpec {
  std::string name;  // "Linear.forward"
  LinearSpec linear;
  std::optional<NormSpec> norm;
  bool return_bias = false;
  bool return_layernorm_output = false;
  bool return_layernorm_output_gathered = false;  // where ranks gather it: of all their rows
  bool save_original_input =
      false;  // keep the input in high precision; quantize it again for wgrad
};

class LinearStep : public ModuleStep {
 public:
  explicit LinearStep(LinearStepSpec spec);

  std::vector<LinearPart*> linear_parts() override { return {linear_.get()}; }
  const LinearStepSpec& spec() const { return spec_; }

 protected:
  PyObject* forward(PyObject* module, PyObject* args, PyObject* kwargs) override;

 private:
  struct Call;
  struct Outputs;
  Outputs compute(Call& call);
  bool keeps_original(const Call& call) const;
  bool returns_gathered() const {
    return spec_.return_layernorm_output && spec_.return_layernorm_output_gathered &&
           spec_.linear.sharding.gathers_input();
  }
  c10::SmallVector<int64_t, 4> output_sizes(const at::Tensor& input) const;
  LayerInput layer_input(Call& call, NormResult* norm_result);
  NodePtr<torch::autograd::Node> record(Call& call, const Operand& weight,
                                        const NormResult& norm_result);

  LinearStepSpec spec_;
  std::shared_ptr<LinearPart> linear_;
};

}  // namespace transformer_engine::pytorch
