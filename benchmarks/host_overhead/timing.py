# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""CPU time of one thread, all cases of a process in random turns.

Thread CPU time does not count what other processes do in the meantime; turns of about a
millisecond in random order let a change of clock or of load meet every case alike, so that the
ratio of two cases within one round is steadier than either time. The backward pass of CPU tensors
runs in the calling thread.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .cases import Case, grad_mode

TURN_SECONDS = 1e-3
WARM_UP_CALLS = 30


def _seconds_of_turn(case: Case, runs: int) -> float:
    """Seconds per module call; gradients are dropped between runs while the clock stands."""
    run, leaves, clock = case.run, case.leaves, time.thread_time_ns
    with grad_mode(case):
        if case.calls == 1:
            start = clock()
            for _ in range(runs):
                run()
            elapsed = clock() - start
        else:
            elapsed = 0
            for _ in range(runs):
                start = clock()
                run()
                elapsed += clock() - start
                for leaf in leaves:
                    leaf.grad = None
    return elapsed * 1e-9 / (runs * case.calls)


def measure(cases: Sequence[Case], rounds: int, seed: int) -> dict[str, list[float]]:
    """Case name -> seconds per module call in each round."""
    order = list(cases)
    shuffle = random.Random(seed).shuffle
    runs = {}
    for case in order:
        _seconds_of_turn(case, WARM_UP_CALLS)
        once = _seconds_of_turn(case, WARM_UP_CALLS) * case.calls
        runs[case.name] = max(1, round(TURN_SECONDS / once))
    samples: dict[str, list[float]] = {case.name: [] for case in order}
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(order)
            for case in order:
                samples[case.name].append(_seconds_of_turn(case, runs[case.name]))
    finally:
        gc.enable()
        gc.unfreeze()
    return samples


@dataclass(frozen=True, slots=True)
class Spread:
    """20th percentile, median and quartiles of the rounds."""

    p20: float
    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Summary of at least two values."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.quantiles(values, n=5, method="inclusive")[0], middle, low, high)


def middle(spreads: Sequence[Spread]) -> Spread:
    """The median of each number over several processes."""
    return Spread(
        *(
            statistics.median(getattr(one, name) for one in spreads)
            for name in ("p20", "median", "low", "high")
        )
    )
