// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The Python module: a list of areas, one bind_<area>.cpp each, and the mapping of the core's
// errors to Python's.
#include <transformer_engine/error.h>

#include "bind.h"
#include "step_module.h"

namespace {

template <typename Error>
void register_error(PyObject* python_type) {
  static PyObject* const type = python_type;
  pybind11::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const Error& error) {
      PyErr_SetString(type, error.what());
    }
  });
}

}  // namespace

PYBIND11_MODULE(transformer_engine_torch, m) {
  register_error<transformer_engine::ValueError>(PyExc_ValueError);
  register_error<transformer_engine::TypeError>(PyExc_TypeError);
  register_error<transformer_engine::RuntimeError>(PyExc_RuntimeError);
  register_error<transformer_engine::NotImplementedError>(PyExc_NotImplementedError);
  transformer_engine::pytorch::bind_activation(m);
  transformer_engine::pytorch::bind_attention(m);
  transformer_engine::pytorch::bind_cast(m);
  transformer_engine::pytorch::bind_cross_entropy(m);
  transformer_engine::pytorch::bind_fused_attention(m);
  transformer_engine::pytorch::bind_gemm(m);
  transformer_engine::pytorch::bind_multi_tensor(m);
  transformer_engine::pytorch::bind_norm(m);
  transformer_engine::pytorch::bind_report(m);
  transformer_engine::pytorch::bind_quantizer(m);
  transformer_engine::pytorch::bind_state(m);
  transformer_engine::pytorch::bind_region(m);
  transformer_engine::pytorch::bind_step_module(m);
  transformer_engine::pytorch::bind_steps(m);
  transformer_engine::pytorch::bind_rope(m);
}
