# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""In which order passes are captured, which is the order that replays have to keep.

A slot is one module for one micro-batch; each has graphs of its own. Chunk c with L_c layers and M
micro-batches has the slots M * (L_1 + .. + L_(c-1)) + m * L_c + l, for micro-batch m and layer l.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..arguments import received


class Kind(Enum):
    """Of a pass."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WGRAD = "weight gradients"  # that a backward left for later


@dataclass(frozen=True, slots=True)
class Pass:
    """One graph."""

    kind: Kind
    slot: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The passes in their order.

    Attributes
    ----------
    passes : list of Pass
    modules : list of int
        Of each slot, which of the modules it runs.
    following : dict of int to int
        Slot -> that of the next layer of its chunk and micro-batch.
    """

    passes: list[Pass]
    modules: list[int]
    following: dict[int, int] = field(default_factory=dict)


def plain_schedule(count: int) -> Schedule:
    """Modules one after the other, then their backwards the other way round."""
    passes = [Pass(Kind.FORWARD, slot) for slot in range(count)]
    for slot in reversed(range(count)):
        passes += [Pass(Kind.BACKWARD, slot), Pass(Kind.WGRAD, slot)]
    return Schedule(passes, list(range(count)))


def ordered_schedule(
    owner: str, order: Sequence[Any], layers_per_chunk: Any, module_count: int
) -> Schedule:
    """The passes that an order of chunks stands for.

    Parameters
    ----------
    order : sequence of number
        c: forward of chunk c (from 1) for its next micro-batch; -c: backward of the oldest one
        that waits; -(c + 0.5): its delayed weight gradients.
    layers_per_chunk : int, sequence of int, or None
        None: as many in all chunks.

    Raises
    ------
    TypeError, ValueError
        For what is no such order, or does not fit the number of modules.
    """
    entries = [_entry(owner, number) for number in order]
    chunk_count = max((chunk for _, chunk in entries), default=-1) + 1
    layers = _layers(owner, layers_per_chunk, chunk_count, module_count)
    micro_batches = _micro_batches(owner, entries, chunk_count)
    chunks = [
        _Chunk(
            owner,
            chunk,
            first_slot=micro_batches * sum(layers[:chunk]),
            layers=layers[chunk],
            is_wgrad_ordered=(Kind.WGRAD, chunk) in entries,
        )
        for chunk in range(chunk_count)
    ]
    passes = [item for kind, chunk in entries for item in chunks[chunk].run(kind)]
    for chunk in chunks:
        chunk.check_end()
    schedule = Schedule(passes, [])
    for chunk, count in enumerate(layers):
        for _ in range(micro_batches):
            first = len(schedule.modules)
            schedule.modules.extend(range(sum(layers[:chunk]), sum(layers[: chunk + 1])))
            schedule.following.update({first + i: first + i + 1 for i in range(count - 1)})
    return schedule


class _Chunk:
    """Which of a chunk's micro-batches wait for which pass."""

    def __init__(
        self, owner: str, chunk: int, *, first_slot: int, layers: int, is_wgrad_ordered: bool
    ) -> None:
        self._owner, self._chunk = owner, chunk
        self._first_slot, self._layers = first_slot, layers
        self._is_wgrad_ordered = is_wgrad_ordered
        self._started = 0
        self._waiting: dict[Kind, deque[int]] = {Kind.BACKWARD: deque(), Kind.WGRAD: deque()}

    def run(self, kind: Kind) -> list[Pass]:
        """The passes of the next micro-batch whose turn for this kind it is."""
        if kind is Kind.FORWARD:
            micro_batch = self._started
            self._started += 1
            self._waiting[Kind.BACKWARD].append(micro_batch)
            return [Pass(kind, slot) for slot in self._slots(micro_batch)]
        micro_batch = self._next(kind)
        passes = []
        for slot in reversed(self._slots(micro_batch)):
            passes.append(Pass(kind, slot))
            if kind is Kind.BACKWARD and not self._is_wgrad_ordered:
                passes.append(Pass(Kind.WGRAD, slot))
        if kind is Kind.BACKWARD and self._is_wgrad_ordered:
            self._waiting[Kind.WGRAD].append(micro_batch)
        return passes

    def _slots(self, micro_batch: int) -> range:
        first = self._first_slot + micro_batch * self._layers
        return range(first, first + self._layers)

    def _next(self, kind: Kind) -> int:
        waiting = self._waiting[kind]
        if not waiting:
            before = Kind.FORWARD if kind is Kind.BACKWARD else Kind.BACKWARD
            raise ValueError(
                f"{self._owner}: _order asks for {kind.value} of chunk {self._chunk + 1} before "
                f"the {before.value} it belongs to; each micro-batch runs forward, backward, and "
                "weight gradients in this order. Reorder it."
            )
        return waiting.popleft()

    def check_end(self) -> None:
        """ValueError where a pass is left over."""
        left = {kind: len(queue) for kind, queue in self._waiting.items() if queue}
        if left:
            kind, count = next(iter(left.items()))
            raise ValueError(
                f"{self._owner}: _order ends with {count} micro-batches of chunk "
                f"{self._chunk + 1} without their {kind.value}; each of them needs it. Append it."
            )


def _entry(owner: str, number: Any) -> tuple[Kind, int]:
    """(kind, chunk from 0) of one entry."""
    rule = (
        "chunk numbers from 1 are required, negative for a backward, and 0.5 further below zero "
        "for its weight gradients. Write for example [1, 1, -1, -1]."
    )
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise TypeError(f"{owner}: _order has the entry {received(number)}; {rule}")
    chunk = abs(math.ceil(number)) - 1
    is_whole = number == math.ceil(number)
    is_wgrad = number < 0 and math.ceil(number) - number == 0.5
    if chunk < 0 or not (is_whole or is_wgrad):
        raise ValueError(f"{owner}: _order has the entry {number}; {rule}")
    if is_wgrad:
        return Kind.WGRAD, chunk
    return (Kind.FORWARD if number > 0 else Kind.BACKWARD), chunk


def _layers(owner: str, given: Any, chunk_count: int, module_count: int) -> list[int]:
    if given is None:
        if chunk_count == 0 or module_count % chunk_count:
            raise ValueError(
                f"{owner}: _order has {chunk_count} chunks; {module_count} modules cannot be "
                "divided evenly among them. Pass _num_layers_per_chunk."
            )
        return [module_count // chunk_count] * chunk_count
    layers = [given] * chunk_count if isinstance(given, int) else list(given)
    are_counts = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in layers)
    if not are_counts or len(layers) != chunk_count or sum(layers) != module_count:
        raise ValueError(
            f"{owner}: _num_layers_per_chunk is {given!r}; {chunk_count} positive numbers whose "
            f"sum is {module_count}, one for each chunk of _order, are required."
        )
    return layers


def _micro_batches(owner: str, entries: list[tuple[Kind, int]], chunk_count: int) -> int:
    forwards = Counter(chunk for kind, chunk in entries if kind is Kind.FORWARD)
    counts = [forwards[chunk] for chunk in range(chunk_count)]
    if len(set(counts)) != 1 or counts[0] == 0:
        raise ValueError(
            f"{owner}: _order has {counts} forwards of its chunks; the same number of each, at "
            "least one, is required. Number chunks from 1 without gaps."
        )
    return counts[0]
