# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The results as text: for the terminal and for docs/host_overhead.md."""

from __future__ import annotations

import re
from typing import Any

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
PREFIX = "host_overhead "
MEGATRON = "Megatron-core TEColumnParallelLinear forward, x ColumnParallelLinear"


def _table(header: list[str], body: list[list[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *body)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def bars_table(document: dict[str, Any]) -> list[str]:
    """Every row: bars, and the measured cost of each kind of kernels."""
    runs = {
        name.removeprefix(PREFIX): content["results"]
        for name, content in document["benchmarks"].items()
    }
    header = ["host time of ours over the plain modules'", "upstream", "gate", "goal"]
    for kernels in runs:
        header += [f"{kernels} kernels", "met", "us"]
    body = []
    for results in zip(*runs.values(), strict=True):
        first = results[0]
        cells = [first["problem"], *(_number(first[bar]) for bar in ("upstream", "gate", "goal"))]
        for result in results:
            measured, baseline = result["cost"], result["baselines"][0]
            cells += [
                f"**{measured['p20']:.2f}** ({measured['median']:.2f})",
                result["met"],
                f"{result['ours']['p20'] * 1e6:.1f} / {baseline['p20'] * 1e6:.1f}",
            ]
        body.append(cells)
    return _table(header, body)


def megatron_lines(document: dict[str, Any]) -> list[str]:
    """The row of Megatron-core's layer (allocate-only kernels), or why it was not measured."""
    row = document["megatron"]
    if isinstance(row, str):
        return [f"{MEGATRON}: not measured, needs what is missing here ({row})."]
    return [
        f"{row['problem']}, allocate-only kernels: **{row['cost']['p20']:.2f}** "
        f"({row['cost']['median']:.2f}); upstream {row['upstream']:g}, gate {row['gate']:g}, goal "
        f"{row['goal']:g}; {row['met']}.",
    ]


def parts_table(document: dict[str, Any]) -> list[str]:
    """Where the time of a Linear forward goes."""
    body = [
        [part["part"], f"{part['median'] * 1e6:.2f}", f"{part['low'] * 1e6:.2f}"]
        for part in document["breakdown"]
    ]
    for cells, part in zip(body, document["breakdown"], strict=True):
        cells[-1] += f" to {part['high'] * 1e6:.2f}"
    return _table(["part of a call", "us", "quartiles"], body)


def counts_table(document: dict[str, Any]) -> list[str]:
    """What a forward of each module does, counted."""
    instructions = document["instructions"]
    header = ["forward of", "calls seen by Python", "tensors allocated", "nodes", "kernels"]
    if not isinstance(instructions, str):
        header.append("instructions")
    body = []
    for name, count in document["counts"].items():
        cells = [name.removesuffix(" fwd"), str(count["python_calls"]), str(count["allocations"])]
        cells += [str(count["nodes"]), f"{document['kernels'][name]:g}"]
        if not isinstance(instructions, str):
            cells.append(f"{instructions[name] / 1000:.1f} k")
        body.append(cells)
    return _table(header, body)


def sections(document: dict[str, Any]) -> str:
    """All that was measured, in Markdown."""
    environment = next(iter(document["benchmarks"].values()))["environment"]
    facts = {key: environment[key] for key in ("cpu", "torch", "python", "commit")}
    lines = [
        f"Measured {environment['date'][:10]} on {facts['cpu']}, torch {facts['torch']}, Python "
        f"{facts['python']}, at {facts['commit']}, with a load average of "
        f"{environment['load_average']:.1f} from other work.",
        "",
        *bars_table(document),
        "",
        *megatron_lines(document),
        "",
        "### Where the time of a Linear forward goes",
        "",
        *parts_table(document),
        "",
        "### What a forward does",
        "",
        *counts_table(document),
    ]
    if isinstance(document["instructions"], str):
        lines += ["", f"No instruction counts: {document['instructions']}."]
    return "\n".join(lines)


def render(page: str, document: dict[str, Any]) -> str:
    """`page` with the part between the two marks replaced."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", flags=re.DOTALL)
    if pattern.search(page) is None:
        raise ValueError(f"render: page lacks the lines {BEGIN} and {END}; put them in.")
    return pattern.sub(lambda _: f"{BEGIN}\n{sections(document)}\n{END}", page)
