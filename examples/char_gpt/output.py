# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and files of the example."""

from __future__ import annotations

import csv
from pathlib import Path

from .jobs import Result

SMOOTHED_STEPS = 10
TABLE_ROWS = 8


def loss_table(results: list[Result]) -> str:
    """Training losses at evenly spaced steps, then the losses at the end, and times."""
    steps = len(results[0].losses)
    shown = sorted({max(1, round(steps * row / TABLE_ROWS)) for row in range(TABLE_ROWS + 1)})
    rows = [["step", *(result.name for result in results)]]
    rows += [[str(step), *(f"{r.losses[step - 1]:.4f}" for r in results)] for step in shown]
    rows.append(["last 5 %", *(f"{result.final_loss:.4f}" for result in results)])
    rows.append(["held out", *(f"{result.held_out_loss:.4f}" for result in results)])
    rows.append(["seconds", *(f"{result.seconds:.0f}" for result in results)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def write_csv(path: Path, results: list[Result]) -> None:
    """One line per step, one column per run."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *(result.name for result in results)])
        writer.writerows(
            [step, *losses]
            for step, losses in enumerate(zip(*(r.losses for r in results), strict=True), 1)
        )


def _smoothed(losses: list[float]) -> list[float]:
    """Means over the last steps, as single batches differ more than precisions do."""
    windows = (losses[max(0, end - SMOOTHED_STEPS) : end] for end in range(1, len(losses) + 1))
    return [sum(window) / len(window) for window in windows]


def write_png(path: Path, results: list[Result]) -> bool:
    """Loss curves; False, with a message, where matplotlib is not installed."""
    try:
        import matplotlib  # an extra of this example, not of the library
    except ModuleNotFoundError:
        print(f"No {path.name}: matplotlib is not installed. To have it: pip install matplotlib")
        return False
    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for result, style in zip(results, ("-", ":", "-", "--", "-."), strict=False):
        label = f"{result.title}, held out {result.held_out_loss:.3f}"
        axes.plot(range(1, len(result.losses) + 1), _smoothed(result.losses), style, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss (nats per character), mean of {SMOOTHED_STEPS} steps")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
