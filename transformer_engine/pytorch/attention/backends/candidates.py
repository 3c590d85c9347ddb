# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""The candidates in order, fastest first, reference last; and the choice among them."""

from __future__ import annotations

import torch

from transformer_engine.common.environment import read_switch

from ..problem import AttentionParams
from .base import AttentionBackend, AttentionSwitches
from .sdpa import SdpaBackend
from .sdpa_varlen import SdpaVarlenBackend
from .unfused import UnfusedBackend

CANDIDATES: tuple[AttentionBackend, ...] = (SdpaVarlenBackend(), SdpaBackend(), UnfusedBackend())


def switches_from_environment() -> AttentionSwitches:
    """Which families the environment allows, now.

    torch's operator chooses among flash and other fused kernels by itself, so it is one backend of
    both families: it is off when both switches are 0.
    """
    return AttentionSwitches(
        flash=read_switch("NVTE_FLASH_ATTN"),
        fused=read_switch("NVTE_FUSED_ATTN"),
        unfused=read_switch("NVTE_UNFUSED_ATTN"),
        deterministic=not read_switch("NVTE_ALLOW_NONDETERMINISTIC_ALGO")
        or torch.are_deterministic_algorithms_enabled(),
    )


def backend_reasons(params: AttentionParams, switches: AttentionSwitches) -> dict[str, str | None]:
    """For each candidate, in order: None when it accepts, else why it refuses."""
    return {candidate.name: candidate.refusal(params, switches) for candidate in CANDIDATES}


def select_backend(params: AttentionParams, switches: AttentionSwitches) -> AttentionBackend:
    """First candidate that accepts; ValueError with every reason when none does."""
    reasons = []
    for candidate in CANDIDATES:
        reason = candidate.refusal(params, switches)
        if reason is None:
            return candidate
        reasons.append(f"{candidate.name}: {reason}")
    raise ValueError(
        "DotProductAttention.forward: no backend accepts this configuration; "
        f"{'; '.join(reasons)}. Change the configuration or the NVTE_*_ATTN switches."
    )
