# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norm weights inside fused modules."""

from __future__ import annotations

from typing import Any

import torch

from ..cpp_extensions import steps
from .base import TransformerEngineBaseModule
from .parameter_init import ones_init, zeros_init

NORMALIZATIONS = ("LayerNorm", "RMSNorm")


def check_normalization(owner: str, normalization: str) -> None:
    """Raise ValueError for an unknown norm."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"{owner}: normalization is {normalization!r}; 'LayerNorm' or 'RMSNorm' is required."
        )


def register_norm_parameters(
    module: TransformerEngineBaseModule, hidden: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Register ``layer_norm_weight`` and, for LayerNorm, ``layer_norm_bias``, each [hidden]."""
    weight = torch.nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
    weight.sequence_parallel = module.sequence_parallel  # type: ignore[attr-defined]
    init = zeros_init if module.zero_centered_gamma else ones_init
    module.register_parameter("layer_norm_weight", weight, init_fn=init)
    if module.normalization == "RMSNorm":
        module.layer_norm_bias = None
        return
    bias = torch.nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
    bias.sequence_parallel = module.sequence_parallel  # type: ignore[attr-defined]
    module.register_parameter("layer_norm_bias", bias, init_fn=zeros_init)


def norm_spec(module: Any, hidden: int) -> Any:
    """The native description of the norm of `module`."""
    return steps.NormSpec(
        label=f"{type(module).__name__}.forward",
        is_rmsnorm=module.normalization == "RMSNorm",
        weight_name="layer_norm_weight",
        bias_name="layer_norm_bias",
        hidden=hidden,
        epsilon=float(module.eps),
        zero_centered_gamma=bool(module.zero_centered_gamma),
    )
