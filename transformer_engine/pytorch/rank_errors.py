# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors of collectives that say who communicated, and what to look for.

What a backend raises when another rank has died, waits elsewhere or sends something else names
neither the operation nor the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch


class RankError(RuntimeError):
    """A collective did not end well."""


def _members(group: Any) -> str:
    try:
        rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    except (RuntimeError, ValueError):  # destroyed meanwhile
        return "a process group"
    return f"rank {rank} of a group of {size}"


class naming:  # a context, used like a function
    """Within the context, an error of the backend becomes one that names the collective.

    Parameters
    ----------
    who : str
        The public function.
    operation : str
        Such as "all-gather".
    group : ProcessGroup or None
    """

    __slots__ = ("_group", "_operation", "_who")

    def __init__(self, who: str, operation: str, group: Any):
        self._who, self._operation, self._group = who, operation, group

    def __enter__(self) -> naming:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, RankError):
            raise RankError(
                f"{self._who}: the {self._operation} on {_members(self._group)} failed: {error}\n"
                "All ranks must call it alike, with equal shapes and dtypes, and live on. Look "
                "for what ended first on the other ranks; TORCH_DISTRIBUTED_DEBUG=DETAIL names "
                "calls that do not fit together."
            ) from error


class NamedHandles:
    """Handles of asynchronous collectives, as one.

    Parameters
    ----------
    handles : sequence of torch.distributed.Work or None
        None where a coalescing manager puts the communication off.
    context : naming
    finish : callable, optional
        What completes the result after the communication.
    """

    def __init__(
        self, handles: Sequence[Any], context: naming, finish: Callable[[], Any] | None = None
    ):
        self._handles = [handle for handle in handles if handle is not None]
        self._context, self._finish = context, finish

    def wait(self) -> None:
        """Return when the result is there."""
        with self._context:
            for handle in self._handles:
                handle.wait()
        if self._finish is not None:
            self._finish()
            self._finish = None

    def is_completed(self) -> bool:
        """Whether the communication is over."""
        return all(handle.is_completed() for handle in self._handles)
