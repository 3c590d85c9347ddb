// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One function per area; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace transformer_engine::pytorch {

void bind_activation(pybind11::module_& m);
void bind_attention(pybind11::module_& m);
void bind_cast(pybind11::module_& m);
void bind_cross_entropy(pybind11::module_& m);
void bind_fused_attention(pybind11::module_& m);
void bind_gemm(pybind11::module_& m);
void bind_multi_tensor(pybind11::module_& m);
void bind_norm(pybind11::module_& m);
void bind_quantizer(pybind11::module_& m);
void bind_block_quantizers(pybind11::module_& m);
void bind_region(pybind11::module_& m);
void bind_state(pybind11::module_& m);
void bind_steps(pybind11::module_& m);
void bind_rope(pybind11::module_& m);
void bind_report(pybind11::module_& m);

}  // namespace transformer_engine::pytorch
