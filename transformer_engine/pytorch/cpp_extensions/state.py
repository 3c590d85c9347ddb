# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The native quantization state: regions, recipes, delayed scaling."""

from transformer_engine_torch import (
    AutocastState,
    DelayedScalingState,
    NativeRecipe,
    Region,
    autocast_depth,
    autocast_enter,
    autocast_exit,
    autocast_state,
    is_in_backward,
    register_delayed_scaling,
    registered_delayed_scaling,
    reset_quantization_state,
    set_autocast_state,
    set_python_update,
    set_quantized_tensor_factory,
    set_recompute_phase,
    set_region_functions,
    take_first_module,
    update_delayed_scaling,
)

__all__ = [
    "AutocastState",
    "DelayedScalingState",
    "NativeRecipe",
    "Region",
    "autocast_depth",
    "autocast_enter",
    "autocast_exit",
    "autocast_state",
    "is_in_backward",
    "register_delayed_scaling",
    "registered_delayed_scaling",
    "reset_quantization_state",
    "set_autocast_state",
    "set_python_update",
    "set_quantized_tensor_factory",
    "set_recompute_phase",
    "set_region_functions",
    "take_first_module",
    "update_delayed_scaling",
]
