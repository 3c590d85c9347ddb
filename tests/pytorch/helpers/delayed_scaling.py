# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling of one tensor, step by step, in plain Python.

Row 0 of the history collects the maximum of the step in progress; the other rows are finished
steps, the newest last. At the end of a step, with a = row 0:

- fused rule: nothing happens for a = 0. Otherwise row 1 falls out, the rows above move down, a
  becomes the last row and row 0 becomes 0 (a history of one row only collects); A = max(old rows
  1.., a), NaN skipped, or a under "most_recent".
- unfused rule (recipes with callables, NVTE_UNFUSED_FP8_UPDATE): the history moves for a = 0 too,
  and A is NaN if any row is.
- scale = (fp8_max 2^-margin) / A in FP32, capped at the largest FP32, where A is finite and
  positive; else it stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLOAT_MAX = float(np.finfo(np.float32).max)


def _quotient(a: float, b: float) -> float:
    with np.errstate(over="ignore"):
        value = float(np.float32(a) / np.float32(b))
    return min(value, FLOAT_MAX)


@dataclass(slots=True)
class DelayedScalingModel:
    """Scale and history of one tensor."""

    length: int
    fp8_max: float = 448.0
    margin: int = 0
    most_recent: bool = False
    unfused: bool = False
    amax_of: Callable[[list[float]], float] | None = None
    scale: float = 1.0
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = self.history or [0.0] * self.length

    def observe(self, tensor: Any) -> None:
        """A cast of a tensor: its largest magnitude, NaN skipped, goes into row 0."""
        magnitudes = [abs(x) for x in tensor.detach().flatten().tolist() if not math.isnan(x)]
        self.history[0] = max([self.history[0], *magnitudes])

    def update(self) -> None:
        """End of a step."""
        a, past = self.history[0], self.history[1:]
        if a == 0 and not self.unfused:
            return
        if self.amax_of is not None:
            amax = self.amax_of(list(self.history))
        elif self.most_recent:
            amax = a
        elif self.unfused:
            rows = [a, *past]
            amax = math.nan if any(math.isnan(x) for x in rows) else max(rows)
        else:
            amax = max([a, *(x for x in past if not math.isnan(x))])
        self.history = [0.0, *past[1:], a] if self.length > 1 else [0.0]
        if amax > 0 and math.isfinite(amax):
            if self.unfused:
                self.scale = min(_quotient(self.fp8_max, amax) / 2**self.margin, FLOAT_MAX)
            else:
                self.scale = _quotient(self.fp8_max * 2.0**-self.margin, amax)

    def resize(self, length: int) -> None:
        """Another history length: the newest maxima that fit stay."""
        kept = self.history[1:][-(length - 1) :] if length > 1 else []
        self.history = [self.history[0], *([0.0] * (length - 1 - len(kept))), *kept]
        self.length = length
