// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A call in C for subclasses of torch.nn.Module (enable_fast_call). It goes straight to the class's
// forward when nothing asks for more: no hook on the module or globally, no compiled call, no
// replaced forward. Anything else takes nn.Module's own path.
// StepModule: the C base class of every module with a native step, mixed in before nn.Module. Where
// the class's forward only runs the step (register_native_forward), the call runs it right away.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace transformer_engine::pytorch {

// What a module does in one forward, made once per module and dropped when an attribute it was made
// from changes.
class Step {
 public:
  virtual ~Step() = default;
  // Runs forward for `module` with the positional tuple and keyword dict (may be null) of the
  // Python call. Returns a new reference, or null with a Python error set.
  virtual PyObject* call(PyObject* module, PyObject* args, PyObject* kwargs) = 0;
};

// Adds the type StepModule to the extension module.
void bind_step_module(pybind11::module_& m);

}  // namespace transformer_engine::pytorch
