# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measured cost of every row against gate and goal, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(document: dict[str, Any], path: Path) -> None:
    """Write a PNG file. Needs matplotlib (requirements-dev.txt)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    runs = document["benchmarks"]
    titles = [result["problem"] for result in next(iter(runs.values()))["results"]]
    figure, axes = pyplot.subplots(figsize=(11, 0.42 * len(titles) + 1.5))
    height = 0.8 / len(runs)
    for index, (name, content) in enumerate(runs.items()):
        places = [place + (index - (len(runs) - 1) / 2) * height for place in range(len(titles))]
        costs = [result["cost"] for result in content["results"]]
        axes.barh(places, [cost["p20"] for cost in costs], height, label=name)
    results = next(iter(runs.values()))["results"]
    for mark, key, colour in (("|", "gate", "black"), ("|", "goal", "green")):
        values = [result[key] for result in results]
        axes.plot(values, range(len(titles)), mark, color=colour, markersize=16, label=key)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
    axes.set_xlabel("host time over that of the plain torch modules (less is better)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.06), ncols=4)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
