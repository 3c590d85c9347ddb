# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and files of the example."""

from __future__ import annotations

import csv
import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformer_engine import report

from .jobs import Result
from .training import RUNS, Settings

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


def distance(result: Result, bf16: Result) -> float:
    """Relative distance of the held-out losses."""
    return abs(result.held_out_loss - bf16.held_out_loss) / bf16.held_out_loss


def measured(results: list[Result], settings: Settings) -> dict[str, Any]:
    """A comparison as plain values: machine, date, settings and every run's losses."""
    found = report.collect()
    bf16 = next(result for result in results if result.name == "bf16")
    runs = {
        result.name: {
            "title": result.title,
            "held_out_loss": round(result.held_out_loss, 4),
            "final_loss": round(result.final_loss, 4),
            "distance": distance(result, bf16),
            "tolerance": RUNS[result.name].tolerance if RUNS[result.name].recipe else None,
            "seconds": round(result.seconds),
            "losses": [round(loss, 4) for loss in result.losses],
        }
        for result in results
    }
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": ",".join(found.devices["cpu"].split(",")[:2]),  # without torch's threads
        "torch": found.versions["torch"],
        "settings": asdict(settings),
        "runs": runs,
    }


_PAGE = """# Training under every recipe

The small GPT of [train_gpt.py](../examples/train_gpt.py), trained from the same seed on the same
batches under every recipe: {parameters} weights in its linear layers, {steps} steps of
{batch} x {context} characters. Held-out loss is in nats per character; the distance is from BF16,
and what is promised of it stands beside it. `make demo-recipes` repeats the comparison,
`make demo-recipes ARGS="--publish docs"` writes this page.

Measured {date} on {cpu}, torch {torch}.

| recipe | held-out loss | distance from BF16 | promised | training loss, last 5 % | seconds |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}

![Training losses under every recipe]({picture})

Weights and optimizer are FP32; weights are quantized in every step. The linear layers of the
transformer run in the recipe's format, forward and backward, everything else in BF16. Seconds are
those of runs side by side, on one thread each, with a sample of text and a repetition from the
checkpoint.
"""


def page(document: dict[str, Any], picture: str) -> str:
    """The page of a comparison, from `measured`."""
    settings = document["settings"]

    def row(run: dict[str, Any]) -> str:
        promised = "-" if run["tolerance"] is None else f"{run['tolerance']:.0%}"
        return (
            f"| {run['title']} | {run['held_out_loss']:.4f} | {run['distance']:.2%} | {promised} | "
            f"{run['final_loss']:.4f} | {run['seconds']} |"
        )

    sizes = settings["sizes"]
    weights = 12 * sizes["layers"] * sizes["hidden"] ** 2
    return _PAGE.format(
        parameters=f"{weights / 1e6:.1f} million",
        steps=settings["steps"],
        batch=settings["batch"],
        context=sizes["context"],
        date=document["date"],
        cpu=document["cpu"],
        torch=document["torch"],
        rows="\n".join(row(run) for run in document["runs"].values()),
        picture=picture,
    )


def publish(folder: Path, results: list[Result], settings: Settings) -> None:
    """recipes.md, and recipes/losses.json and losses.png beside it."""
    document = measured(results, settings)
    files = folder / "recipes"
    files.mkdir(parents=True, exist_ok=True)
    # One line per run.
    (files / "losses.json").write_text(json.dumps(document).replace("}, ", "},\n") + "\n")
    write_png(files / "losses.png", results)
    (folder / "recipes.md").write_text(page(document, "recipes/losses.png"))


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

    bf16 = next((result for result in results if result.name == "bf16"), None)
    figure, panels = pyplot.subplots(2, 1, figsize=(8, 8), height_ratios=(3, 2), sharex=True)
    for index, result in enumerate(results):
        style = ("-", ":", "--", "-.")[index % 4]
        label = f"{result.title}, held out {result.held_out_loss:.3f}"
        steps, losses = range(1, len(result.losses) + 1), _smoothed(result.losses)
        panels[0].plot(steps, losses, style, linewidth=1.2, label=label)
        if bf16 is not None:
            far = [100 * (x / y - 1) for x, y in zip(losses, _smoothed(bf16.losses), strict=True)]
            panels[1].plot(steps, far, style, linewidth=1.2)
    panels[0].set_ylabel(f"training loss (nats per character), mean of {SMOOTHED_STEPS} steps")
    panels[0].legend(fontsize="small")
    panels[1].set_ylabel("above BF16, %")
    panels[1].set_xlabel("step")
    for axes in panels:
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
