# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""First version of the offload interface: the same engine behind six arguments."""

from __future__ import annotations

from typing import Any

from .cpu_offload import get_cpu_offload_context as _get_cpu_offload_context
from .cpu_offload import is_cpu_offload_enabled, mark_activation_offload, mark_not_offload

__all__ = [
    "CPUOffloadEnabled",
    "get_cpu_offload_context",
    "is_cpu_offload_enabled",
    "mark_activation_offload",
    "mark_not_offload",
]

# Assigned by clients; nothing here depends on it.
CPUOffloadEnabled = False


def get_cpu_offload_context(
    enabled: bool = False,
    num_layers: int = 1,
    model_layers: int = 1,
    offload_activations: bool = True,
    offload_weights: bool = False,
    double_buffering: bool = False,
) -> tuple[Any, ...]:
    """(context, sync_function); see `cpu_offload.get_cpu_offload_context`."""
    return _get_cpu_offload_context(
        enabled, num_layers, model_layers, offload_activations, offload_weights, double_buffering
    )
