# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing of tokens to experts: the names that clients import, not yet the functions."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "fused_compute_score_for_moe_aux_loss",
    "fused_moe_aux_loss",
    "fused_topk_with_score_function",
]


_REFUSAL = (
    "{}: fused routers are not in this version. Use the router of torch operators that your client "
    "has, for Megatron-core moe_router_fusion=False."
)


def fused_topk_with_score_function(
    logits: torch.Tensor, *args: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(probabilities, routing map) of the chosen experts; raises NotImplementedError."""
    raise NotImplementedError(_REFUSAL.format("fused_topk_with_score_function"))


def fused_compute_score_for_moe_aux_loss(
    logits: torch.Tensor, *args: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(routing map, scores) for the load-balancing loss; raises NotImplementedError."""
    raise NotImplementedError(_REFUSAL.format("fused_compute_score_for_moe_aux_loss"))


def fused_moe_aux_loss(probs: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """The load-balancing loss; raises NotImplementedError."""
    raise NotImplementedError(_REFUSAL.format("fused_moe_aux_loss"))
