# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a backend is: it describes first (accepts, or refuses with a reason) and runs later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..problem import AttentionOperands, AttentionParams

# (q, k, v, operands) -> output in the input format with flattened heads, and the largest logits [h]
# if asked for. None from a backend that declines a problem after all: the next one runs.
Runner = Callable[
    [Tensor, Tensor, Tensor, AttentionOperands | None], Tensor | tuple[Tensor, Tensor] | None
]
SureRunner = Callable[
    [Tensor, Tensor, Tensor, AttentionOperands | None], Tensor | tuple[Tensor, Tensor]
]


@dataclass(frozen=True, slots=True)
class AttentionSwitches:
    """Which backend families the user allows (environment)."""

    flash: bool = True
    fused: bool = True
    unfused: bool = True
    deterministic: bool = False


class AttentionBackend(Protocol):
    """One way to compute attention."""

    name: str

    def refusal(self, params: AttentionParams, switches: AttentionSwitches) -> str | None:
        """Why this backend cannot take the problem; None when it can."""

    def compile(self, params: AttentionParams) -> Runner:
        """Fix everything that does not depend on tensor values; called once per problem."""
