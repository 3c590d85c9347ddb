# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Native steps of the modules."""

from transformer_engine_torch import (
    LinearSpec,
    LinearStep,
    ModuleStep,
    NormMLPStep,
    NormSpec,
    NormStep,
    PythonStep,
    QuantizedCall,
    QuantizerSet,
    Sharding,
    StepModule,
    call_above_autograd,
    detach_edges,
    enable_fast_call,
    held_object,
    hold_object,
    register_native_forward,
)

__all__ = [
    "LinearSpec",
    "LinearStep",
    "ModuleStep",
    "NormMLPStep",
    "NormSpec",
    "NormStep",
    "PythonStep",
    "QuantizedCall",
    "QuantizerSet",
    "Sharding",
    "StepModule",
    "call_above_autograd",
    "detach_edges",
    "enable_fast_call",
    "held_object",
    "hold_object",
    "register_native_forward",
]
