# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""How parameters get their first values, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .sharding import WeightShard

InitMethod = Callable[[torch.Tensor], Any]


def default_init(weight: torch.Tensor) -> torch.Tensor:
    """N(0, 0.023)"""
    return torch.nn.init.normal_(weight, mean=0.0, std=0.023)


def zeros_init(weight: torch.Tensor) -> torch.Tensor:
    """All zeros."""
    return torch.nn.init.zeros_(weight)


def ones_init(weight: torch.Tensor) -> torch.Tensor:
    """All ones."""
    return torch.nn.init.ones_(weight)


@dataclass(frozen=True)
class ParameterInit:
    """How a parameter gets its values."""

    init_fn: InitMethod
    get_rng_state_tracker: Callable[[], Any] | None = None
    rng_tracker_name: str | None = None
    fp8_meta_index: int | None = None  # the weight's quantizer slot
    shard: WeightShard | None = None  # where other ranks have the other parts

    def fill(self, values: torch.Tensor) -> None:
        """Draw the values in place."""
        with torch.no_grad(), _forked(self):
            if self.shard is None:
                self.init_fn(values)
            else:
                self.shard.draw(self.init_fn, values)

    def fill_if_drawn(self, values: torch.Tensor) -> bool:
        """The same, and whether `init_fn` drew any: one that leaves them to the caller gives 0."""
        with torch.no_grad():
            values.fill_(torch.nan)
            self.fill(values)
            is_drawn = not bool(values.isnan().all()) or values.numel() == 0
            if not is_drawn:
                values.zero_()
        return is_drawn


class _forked:  # a context, used like a function
    """Runs inside the parameter's RNG tracker, if it has one."""

    def __init__(self, how: ParameterInit) -> None:
        self._context: Any = None
        if how.get_rng_state_tracker is not None:
            tracker = how.get_rng_state_tracker()
            name = how.rng_tracker_name
            self._context = tracker.fork(name) if name else tracker.fork()

    def __enter__(self) -> None:
        if self._context is not None:
            self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._context is not None:
            self._context.__exit__(*error)


def _get_high_precision_init_val(self: torch.Tensor) -> torch.Tensor | None:
    if not hasattr(self, "_high_precision_init_val"):
        return None
    value: torch.Tensor | None = self._high_precision_init_val
    if value is None:  # left to the caller, who has written it into the parameter
        value = self.dequantize().detach().cpu()
    return value


def _clear_high_precision_init_val(self: torch.Tensor) -> None:
    if hasattr(self, "_high_precision_init_val"):
        del self._high_precision_init_val


def keep_init_value(parameter: torch.nn.Parameter, value: torch.Tensor | None) -> None:
    """Hang the initial value and its two accessors on a quantized parameter.

    None stands for what the parameter holds when asked for: its `init_method` drew nothing, and
    the caller writes the values afterwards.
    """
    parameter._high_precision_init_val = value  # type: ignore[attr-defined]
    parameter.get_high_precision_init_val = _get_high_precision_init_val.__get__(parameter)  # type: ignore[attr-defined]
    parameter.clear_high_precision_init_val = _clear_high_precision_init_val.__get__(parameter)  # type: ignore[attr-defined]
