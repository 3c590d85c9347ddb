# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure, print the table of gates and goals, and write JSON, page and picture where asked.

python -m benchmarks.host_overhead [--quick] [--json FILE] [--page FILE] [--plot FILE]

The exit status is 1 when a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)

from .. import harness
from . import allocate_only, instructions, megatron, report, results
from .worker import KERNELS


def _worker(*arguments: object) -> dict[str, Any]:
    """Run one process of the benchmark. The caller sees what it writes to stderr when it fails."""
    command = [sys.executable, "-m", "benchmarks.host_overhead.worker", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=allocate_only.ROOT, env=environment
    )
    if result.returncode != 0:
        raise RuntimeError(f"host_overhead: {' '.join(command)} failed:\n{result.stderr}")
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document


def _megatron(kernels: str, processes: int, rounds: int) -> dict[str, Any] | str:
    """The row of Megatron-core's layer, or why there is none."""
    samples = []
    for seed in range(processes):
        options = ("--kernels", kernels, "--rounds", rounds, "--seed", seed)
        answer = _worker("megatron", *options)
        if "missing" in answer:
            return str(answer["missing"])
        samples.append(answer["seconds"])
    return results.row(megatron.BAR, samples)


def measure(processes: int, rounds: int, with_instructions: bool) -> dict[str, Any]:
    """Everything, as results.py describes it."""
    document: dict[str, Any] = {"benchmarks": {}}
    for kernels in KERNELS:
        options = ("--kernels", kernels, "--rounds", rounds)
        samples = [
            _worker("bars", *options, "--seed", seed)["seconds"] for seed in range(processes)
        ]
        document["benchmarks"][report.PREFIX + kernels] = {
            "environment": {**harness.environment(), "processes": processes, "rounds": rounds},
            "results": results.rows(samples),
        }
    document["megatron"] = _megatron(KERNELS[0], processes, rounds)
    options = ("--kernels", KERNELS[0], "--rounds", rounds)
    samples = [
        _worker("breakdown", *options, "--seed", seed)["seconds"] for seed in range(processes)
    ]
    document["breakdown"] = results.parts(samples)
    document.update(_worker("counts", "--kernels", KERNELS[0]))
    document["instructions"] = (
        instructions.measure() if with_instructions else "they were not asked for"
    )
    return document


def main() -> int:
    """Read the command line; 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_overhead")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="one process, 20 rounds, no callgrind")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--page", type=Path, help="put the tables into this Markdown file")
    parser.add_argument("--plot", type=Path, help="draw this PNG file")
    options = parser.parse_args()
    if options.rounds < 2 or options.processes < 1:
        parser.error("--rounds of at least 2 and --processes of at least 1 are needed")
    allocate_only.build()
    if options.quick:
        document = measure(1, 20, with_instructions=False)
    else:
        document = measure(options.processes, options.rounds, with_instructions=True)
    print(report.sections(document))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(report.render(options.page.read_text(), document))
    if options.plot is not None:
        from . import plot

        plot.draw(document, options.plot)
    missed = [
        f"{name}: {result['problem']}"
        for name, content in document["benchmarks"].items()
        for result in content["results"]
        if result["met"] == "missed"
    ]
    row = document["megatron"]
    if isinstance(row, dict) and row["met"] == "missed":
        missed.append(row["problem"])
    print("\nevery gate is met" if not missed else "\nmissed gates:", *missed, sep="\n  ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
