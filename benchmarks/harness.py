# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Timing shared by all benchmarks.

A benchmark is a list of `Comparison`s: one case of ours against baselines.
The cases of a comparison take turns in one process, so that a change of clock or of load meets
all of them; each round times one batch of calls per case, and the median over the rounds counts.

    if __name__ == "__main__":
        main("cast", comparisons())
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)
import transformer_engine_torch as tex

# One batch lasts at least this long, so that the clock's resolution and its call vanish.
BATCH_SECONDS = 2e-3
WARM_UP_SECONDS = 0.05


_HUGE_PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE = 14  # linux/mman.h


def warm_empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory as the library allocates its large results: huge pages where possible, touched.

    Buffers of small pages lie anew in every process, and memory-bound cases are then faster in one
    process than in the next.
    """
    tensor = torch.empty(*shape, dtype=dtype)
    begin = -(-tensor.data_ptr() // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    length = (tensor.data_ptr() + tensor.nbytes - begin) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if sys.platform == "linux" and length > 0:
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        advise(begin, length, _MADV_HUGEPAGE)  # may fail: pages are small then
    return tensor.zero_()


@dataclass(frozen=True, slots=True)
class Case:
    """One function to time.

    Attributes
    ----------
    name : str
        What runs, for example "torch copy_".
    run : Callable
        Called without arguments; allocates only what a user's call would allocate.
    bytes_moved : int
        Bytes read plus written by one call as the formula needs them, 0 when not of interest.
    flops : int
        Floating-point operations of one call, 0 when not of interest.
    threads : int, optional
        Instead of the comparison's: to compare thread counts.
    """

    name: str
    run: Callable[[], object]
    bytes_moved: int = 0
    flops: int = 0
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against baselines at one problem.

    Attributes
    ----------
    problem : str
        Shape and types, for example "bf16 -> e4m3, 4096x8192".
    ours : Case
    baselines : sequence of Case
    threads : int
        Set for torch and for the core alike.
    goal : float, optional
        Ratio to the first baseline that the project promises.
    """

    problem: str
    ours: Case
    baselines: Sequence[Case] = ()
    threads: int = 1
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one case over the rounds: median and quartiles."""

    case: Case
    seconds: float
    quartiles: tuple[float, float]

    @property
    def gbps(self) -> float:
        """10^9 bytes per second."""
        return self.case.bytes_moved / self.seconds / 1e9

    @property
    def tflops(self) -> float:
        """10^12 operations per second."""
        return self.case.flops / self.seconds / 1e12

    def speed(self) -> float:
        """What is compared: bytes per second where bytes are known, else calls per second."""
        return (self.case.bytes_moved or 1) / self.seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """Timings of a comparison."""

    comparison: Comparison
    ours: Timing
    baselines: tuple[Timing, ...] = field(default_factory=tuple)

    def ratio(self, baseline: Timing) -> float:
        """Our speed over the baseline's; above 1 is faster."""
        return self.ours.speed() / baseline.speed()


def _batch_size(case: Case, threads: int) -> int:
    """Calls per batch, after warming up."""
    torch.set_num_threads(threads)
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < WARM_UP_SECONDS or calls < 2:
        case.run()
        calls += 1
    return max(1, round(calls * BATCH_SECONDS / elapsed))


def _seconds_per_call(case: Case, threads: int, batch: int) -> float:
    """Time of one batch. The call that is not timed wakes the threads after a change of count."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
        case.run()
    start = time.perf_counter()
    for _ in range(batch):
        case.run()
    return (time.perf_counter() - start) / batch


def measure(comparison: Comparison, rounds: int) -> Outcome:
    """Time all cases of a comparison in turns."""
    previous = torch.get_num_threads()
    cases = [comparison.ours, *comparison.baselines]
    threads = [case.threads or comparison.threads for case in cases]
    try:
        batches = [_batch_size(case, count) for case, count in zip(cases, threads, strict=True)]
        samples: list[list[float]] = [[] for _ in cases]
        for _ in range(rounds):
            for case, count, batch, times in zip(cases, threads, batches, samples, strict=True):
                times.append(_seconds_per_call(case, count, batch))
    finally:
        torch.set_num_threads(previous)
    timings = []
    for case, times in zip(cases, samples, strict=True):
        low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
        timings.append(Timing(case, middle, (low, high)))
    return Outcome(comparison, timings[0], tuple(timings[1:]))


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def environment() -> dict[str, object]:
    """Machine, date and versions, stored beside every result."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cpus": os.cpu_count(),
        "instruction_set": tex.cpu_instruction_set(),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _line(name: str, timing: Timing, ratio: str = "") -> str:
    low, high = timing.quartiles
    spread = f"{timing.seconds * 1e6:11.1f} us [{low * 1e6:.1f}, {high * 1e6:.1f}]"
    rates = f"{timing.gbps:8.1f} GB/s" if timing.case.bytes_moved else ""
    rates += f"{timing.tflops:8.3f} TFLOPS" if timing.case.flops else ""
    return f"  {name:34}{spread:38}{rates:26}{ratio}".rstrip()


def _print(outcome: Outcome) -> None:
    comparison = outcome.comparison
    print(f"{comparison.problem}, {comparison.threads} thread(s)")
    print(_line(comparison.ours.name, outcome.ours))
    for index, baseline in enumerate(outcome.baselines):
        ratio = f"ours {outcome.ratio(baseline):.2f} x"
        if index == 0 and comparison.goal is not None:
            verdict = "met" if outcome.ratio(baseline) >= comparison.goal else "MISSED"
            ratio += f" (goal {comparison.goal:g}: {verdict})"
        print(_line(baseline.case.name, baseline, ratio))


def _as_record(outcome: Outcome) -> dict[str, object]:
    def record(timing: Timing) -> dict[str, object]:
        return {
            "name": timing.case.name,
            "seconds": timing.seconds,
            "quartiles": timing.quartiles,
            "bytes_moved": timing.case.bytes_moved,
            "flops": timing.case.flops,
            "threads": timing.case.threads or outcome.comparison.threads,
        }

    return {
        "problem": outcome.comparison.problem,
        "goal": outcome.comparison.goal,
        "ours": record(outcome.ours),
        "baselines": [
            {**record(baseline), "ratio": outcome.ratio(baseline)} for baseline in outcome.baselines
        ],
    }


def _write(
    path: Path, name: str, described: dict[str, object], outcomes: Sequence[Outcome]
) -> None:
    """Put one benchmark's results into a file that may hold others'."""
    document = json.loads(path.read_text()) if path.exists() else {"benchmarks": {}}
    records = [_as_record(outcome) for outcome in outcomes]
    document["benchmarks"][name] = {"environment": described, "results": records}
    path.write_text(json.dumps(document, indent=1) + "\n")


def main(
    name: str, comparisons: Iterable[Comparison], argv: Sequence[str] | None = None
) -> list[Outcome]:
    """Run comparisons from the command line: measure, print, and write JSON where asked.

    Parameters
    ----------
    name : str
        Stem of the benchmark, stored in the JSON file.
    comparisons : iterable of Comparison
        Consumed one at a time, so that a generator can free the tensors of the last one.
    argv : sequence of str, optional
        Arguments instead of the command line's.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks...bench_{name}")
    parser.add_argument("--rounds", type=int, default=25, help="timed rounds per case")
    parser.add_argument("--only", default="", help="run problems containing this text")
    parser.add_argument(
        "--json", type=Path, help="write results to this file; other benchmarks in it stay"
    )
    options = parser.parse_args(argv)
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; quartiles need 2 or more")
    described = environment()
    print("  ".join(f"{key}={value}" for key, value in described.items()))
    outcomes = []
    for comparison in comparisons:
        if options.only in comparison.problem:
            outcomes.append(measure(comparison, options.rounds))
            _print(outcomes[-1])
    if options.json is not None:
        _write(options.json, name, described, outcomes)
    return outcomes
