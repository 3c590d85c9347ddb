# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""The candidates in order, fastest first, reference last; and the choice among them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from transformer_engine.common.environment import read_switch

from ..problem import AttentionOperands, AttentionParams
from .base import AttentionBackend, AttentionSwitches, SureRunner
from .cudnn import CudnnBackend
from .sdpa import SdpaBackend
from .sdpa_varlen import SdpaVarlenBackend
from .unfused import UnfusedBackend

CANDIDATES: tuple[AttentionBackend, ...] = (
    CudnnBackend(),
    SdpaVarlenBackend(),
    SdpaBackend(),
    UnfusedBackend(),
)


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


def compile_first(params: AttentionParams, switches: AttentionSwitches) -> SureRunner:
    """Bind the problem to the first candidate that accepts; ValueError with every reason when none
    does. Where it declines after all, the next one that accepts runs from then on.
    """
    first, rest = _accepting(params, switches, CANDIDATES)
    run = first.compile(params)
    if first is not CANDIDATES[0]:
        return cast(SureRunner, run)  # cuDNN's alone may decline

    def run_or_next(
        q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        nonlocal run, rest
        out = run(q, k, v, operands)
        while out is None:
            following, rest = _accepting(params, switches, rest)
            run = following.compile(params)
            out = run(q, k, v, operands)
        return out

    return run_or_next


def _accepting(
    params: AttentionParams,
    switches: AttentionSwitches,
    candidates: tuple[AttentionBackend, ...],
) -> tuple[AttentionBackend, tuple[AttentionBackend, ...]]:
    """First of the candidates that accepts, and those behind it."""
    reasons = []
    for i, candidate in enumerate(candidates):
        reason = candidate.refusal(params, switches)
        if reason is None:
            return candidate, candidates[i + 1 :]
        reasons.append(f"{candidate.name}: {reason}")
    raise ValueError(
        "DotProductAttention.forward: no backend accepts this configuration; "
        f"{'; '.join(reasons)}. Change the configuration or the NVTE_*_ATTN switches."
    )
