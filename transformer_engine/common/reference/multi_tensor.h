// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <transformer_engine/multi_tensor.h>

namespace transformer_engine::reference {

void multi_tensor_scale(const MultiTensorScaleArgs& args, const Context& context);
void multi_tensor_l2norm(const MultiTensorL2NormArgs& args, const Context& context);
void multi_tensor_adam(const MultiTensorAdamArgs& args, const Context& context);
void multi_tensor_sgd(const MultiTensorSgdArgs& args, const Context& context);
void multi_tensor_scales(const MultiTensorScalesArgs& args, const Context& context);
void multi_tensor_e8m0(const MultiTensorE8M0Args& args, const Context& context);

}  // namespace transformer_engine::reference
