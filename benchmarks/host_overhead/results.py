# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The document that a run leaves: rows of the bars in the harness's form, and what was counted.

{"benchmarks": {"host_overhead <kernels>": {"environment": {}, "results": [row]}},
"megatron": row or why there is none, "breakdown": [], "counts": {}, "kernels": {},
"instructions": {} or why there are none}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .bars import BARS, Bar
from .breakdown import PARTS
from .timing import Spread, middle, spread

Samples = dict[str, list[float]]  # case -> seconds per call in each round


def _timing(name: str, processes: Sequence[Samples]) -> dict[str, Any]:
    """One case in the form of benchmarks/harness.py: median and quartiles."""
    times = middle([spread(samples[name]) for samples in processes])
    return {
        "name": name,
        "seconds": times.median,
        "quartiles": [times.low, times.high],
        "p20": times.p20,
        "threads": 1,
    }


def cost(bar: Bar, processes: Sequence[Samples]) -> Spread:
    """Ours over the baseline, round by round; the median of the processes."""
    ratios = []
    for samples in processes:
        pairs = zip(samples[bar.ours], samples[bar.baseline], strict=True)
        ratios.append(spread([ours / baseline for ours, baseline in pairs]))
    return middle(ratios)


def verdict(measured: float, bar: Bar) -> str:
    """ "goal", "gate" or "missed"."""
    if measured <= bar.goal:
        return "goal"
    return "gate" if measured <= bar.gate else "missed"


def row(bar: Bar, processes: Sequence[Samples]) -> dict[str, Any]:
    """One row of the table."""
    ratio = cost(bar, processes)
    baseline = _timing(bar.baseline, processes)
    return {
        "problem": bar.title,
        "goal": bar.goal,
        "gate": bar.gate,
        "upstream": bar.upstream,
        "cost": asdict(ratio),
        "met": verdict(ratio.p20, bar),
        "ours": _timing(bar.ours, processes),
        "baselines": [{**baseline, "ratio": 1.0 / ratio.median}],
    }


def rows(processes: Sequence[Samples]) -> list[dict[str, Any]]:
    """All rows of the table."""
    return [row(bar, processes) for bar in BARS]


def parts(processes: Sequence[Samples]) -> list[dict[str, Any]]:
    """Seconds of each part of a call: differences between variants, round by round."""
    found = []
    for part in PARTS:
        spreads = []
        for samples in processes:
            base = samples[part.without] if part.without else [0.0] * len(samples[part.case])
            pairs = zip(samples[part.case], base, strict=True)
            spreads.append(spread([(more - less) / part.times for more, less in pairs]))
        found.append({"part": part.title, **asdict(middle(spreads))})
    return found
