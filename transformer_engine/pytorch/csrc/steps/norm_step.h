// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// te.LayerNorm and te.RMSNorm.
#pragma once

#include "steps/module_step.h"
#include "steps/norm_part.h"

namespace transformer_engine::pytorch {

struct NormStepSpec {
  NormSpec norm;
  std::vector<int64_t> normalized_shape;  // trailing dimensions; their product is norm.hidden
};

class NormStep : public ModuleStep {
 public:
  explicit NormStep(NormStepSpec spec) : ModuleStep(spec.norm.label), spec_(std::move(spec)) {}

 protected:
  PyObject* forward(PyObject* module, PyObject* args, PyObject* kwargs) override;

 private:
  NormStepSpec spec_;
};

}  // namespace transformer_engine::pytorch
