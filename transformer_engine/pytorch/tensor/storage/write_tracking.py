# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which copies of a tensor hold the same values, while several tensors share buffers.

An alias may drop one of its two copies and be written: the other alias's second copy is then older
than its first. Each data buffer carries a state that all its holders see: the values it holds, a
token shared with the other copy of them, and torch's write count at that time. Quantizers replace
the token; writes past them (to the raw buffers) show in the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

Stale = Literal["rowwise", "columnwise", "one"]


def version_of(tensor: torch.Tensor) -> int:
    """Number of writes torch has counted; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def count_write(tensor: torch.Tensor | None) -> None:
    """Tell torch about a write it did not see."""
    if tensor is not None and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


class Values:
    """What was written at one time, perhaps to two copies."""

    __slots__ = ("has_two_copies", "is_part", "is_replaced", "sources")

    def __init__(self, is_part: bool = False) -> None:
        self.sources: Sequence[Any] = ()  # what rows of them were rounded from; see `TensorPart`
        self.has_two_copies = False
        self.is_part = is_part  # written to one of two copies
        self.is_replaced = False  # in one copy at least


class CopyState:
    """The values in one buffer."""

    __slots__ = ("arriving", "values", "version")

    def __init__(self, values: Values, version: int) -> None:
        self.values = values
        self.version = version
        self.arriving: Any = None  # what keep_arriving was given, until the next write

    def __reduce__(self) -> Any:
        # Files and deep copies hold buffers of their own, which the constructors look at again.
        # A type that restricted readers know.
        return (set, ())


def _state_of(buffer: torch.Tensor) -> CopyState | None:
    state = getattr(buffer, "_copy_state", None)
    return state if type(state) is CopyState else None


def _set_state(buffer: torch.Tensor, values: Values, version: int) -> None:
    state = _state_of(buffer)
    if state is None:
        buffer._copy_state = CopyState(values, version)  # type: ignore[attr-defined]
    else:
        state.values, state.version, state.arriving = values, version, None


def keep_arriving(buffer: torch.Tensor, parts: Any) -> None:
    """Attach something to the present values of a buffer; gone when others are written."""
    state = _state_of(buffer)
    if state is not None:
        state.version, state.arriving = version_of(buffer), parts


def arriving_in(buffer: torch.Tensor) -> Any:
    """What `keep_arriving` was given for the values that the buffer still holds, or None."""
    state = _state_of(buffer)
    if state is None or _writes_since(buffer, state):
        return None
    return state.arriving


def _writes_since(buffer: torch.Tensor, state: CopyState) -> int:
    return version_of(buffer) - state.version


def share_state(buffer: torch.Tensor, view: torch.Tensor) -> None:
    """Let a view of a whole buffer have its state."""
    state = _state_of(buffer)
    if state is not None and view is not buffer:
        view._copy_state = state  # type: ignore[attr-defined]


def begin_part(buffer: torch.Tensor, part: torch.Tensor) -> None:
    """Let a view of a part of a buffer begin with its state."""
    state = _state_of(buffer)
    if state is not None:
        part._copy_state = CopyState(state.values, state.version)  # type: ignore[attr-defined]


def track_copies(rowwise: torch.Tensor | None, columnwise: torch.Tensor | None) -> None:
    """Take note of a tensor's buffers; of those not known, that they hold what the others do."""
    held = [buffer for buffer in (rowwise, columnwise) if buffer is not None]
    known = [buffer for buffer in held if _state_of(buffer) is not None]
    if len(known) == len(held):
        _join(held)
        return
    if known:
        follow(known[0], held[1] if known[0] is held[0] else held[0])
        return
    values = Values()
    values.has_two_copies = len(held) == 2
    for buffer in held:
        _set_state(buffer, values, version_of(buffer))


def _join(held: list[torch.Tensor]) -> None:
    """Let two copies that were each alone so far hold the same values."""
    states = [state for buffer in held if (state := _state_of(buffer)) is not None]
    values = [state.values for state in states]
    if values[:1] * len(held) == values or any(v.has_two_copies or v.is_part for v in values):
        return
    values[0].has_two_copies = True
    for buffer in held:
        _set_state(buffer, values[0], version_of(buffer))


def follow(source: torch.Tensor, made: torch.Tensor) -> None:
    """Say that a copy was made from the other one."""
    state = _state_of(source)
    if state is None:
        track_copies(source, None)
        state = _state_of(source)
    assert state is not None
    state.values.has_two_copies = True
    _set_state(made, state.values, version_of(made) - _writes_since(source, state))


def mark_written(rowwise: torch.Tensor | None, columnwise: torch.Tensor | None) -> None:
    """Say that the copies that are given hold new values, and no others do."""
    held = [buffer for buffer in (rowwise, columnwise) if buffer is not None]
    states = [_state_of(buffer) for buffer in held]
    former = [state.values for state in states if state is not None]
    for values in former:
        values.is_replaced = True
    new = Values(is_part=len(held) == 1 and any(v.has_two_copies or v.is_part for v in former))
    new.has_two_copies = len(held) == 2
    for buffer in held:
        _set_state(buffer, new, version_of(buffer))


def remember_sources(
    rowwise: torch.Tensor | None, columnwise: torch.Tensor | None, sources: Sequence[Any]
) -> None:
    """Keep, until the next write, what the values were rounded from."""
    held = rowwise if rowwise is not None else columnwise
    state = None if held is None else _state_of(held)
    if state is not None:
        state.values.sources = sources


def sources_of(rowwise: torch.Tensor | None, columnwise: torch.Tensor | None) -> Sequence[Any]:
    """What was remembered; nothing if there was a write since."""
    states = [(b, _state_of(b)) for b in (rowwise, columnwise) if b is not None]
    if any(state is None or _writes_since(buffer, state) for buffer, state in states):
        return ()
    found = [state.values for _, state in states if state is not None]
    return found[0].sources if found and not any(v is not found[0] for v in found) else ()


def stale_copy(rowwise: torch.Tensor | None, columnwise: torch.Tensor | None) -> Stale | None:
    """The copy that is older than the other one, or than one held elsewhere; None if none is.

    "one" where both were written apart, so that no order is known.
    """
    if rowwise is None or columnwise is None:
        only, name = (rowwise, "rowwise") if columnwise is None else (columnwise, "columnwise")
        state = None if only is None else _state_of(only)
        if only is None or state is None or not state.values.is_replaced:
            return None
        return None if _writes_since(only, state) else name  # type: ignore[return-value]
    row, column = _state_of(rowwise), _state_of(columnwise)
    if row is None or column is None:
        return None
    if row.values is not column.values:
        if row.values.is_replaced == column.values.is_replaced:
            return "one" if row.values.is_part or column.values.is_part else None
        return "rowwise" if row.values.is_replaced else "columnwise"
    writes = (_writes_since(rowwise, row), _writes_since(columnwise, column))
    if writes[0] == writes[1]:
        return None
    return "columnwise" if writes[0] > writes[1] else "rowwise"


def stale_error(owner: str, stale: Stale) -> RuntimeError:
    """That a copy is stale, and what to do."""
    what = "one copy" if stale == "one" else f"the {stale} copy"
    return RuntimeError(
        f"{owner}: {what} is older than values that were written to the other one through another "
        "tensor on the same data; copies of the same values are required, and here none is made "
        "from the other. Quantize the values into this tensor (quantize_), or, to keep the newer "
        "copy alone, drop the older one with update_usage."
    )
