# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark harness: who runs when, on how many threads, what is written and compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import harness
from benchmarks.compare import compare
from benchmarks.harness import Case, Comparison, Timing

BENCHMARKS = Path(harness.__file__).parent


@pytest.fixture(autouse=True)
def short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr(harness, "WARM_UP_SECONDS", 0.0)


def test_cases_take_turns_and_thread_counts_are_theirs() -> None:
    calls: list[tuple[str, int]] = []

    def noting(name: str) -> Case:
        return Case(name, lambda: calls.append((name, torch.get_num_threads())))

    before = torch.get_num_threads()
    one_thread = Case("b", lambda: calls.append(("b", torch.get_num_threads())), threads=1)
    outcome = harness.measure(Comparison("p", noting("a"), [one_thread], threads=2), rounds=4)
    assert torch.get_num_threads() == before
    assert set(calls) == {("a", 2), ("b", 1)}
    order = [name for name, _ in calls]
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["a", "b"] * 5  # one warm-up, four rounds
    assert [timing.case.name for timing in (outcome.ours, *outcome.baselines)] == ["a", "b"]


def test_the_thread_count_comes_back_after_an_error() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        harness.measure(Comparison("p", Case("a", fail), threads=before + 1), rounds=2)
    assert torch.get_num_threads() == before


def test_ratio_compares_bandwidth_where_bytes_are_known_and_calls_elsewhere() -> None:
    def timing(seconds: float, moved: int) -> Timing:
        return Timing(Case("c", lambda: None, moved), seconds, (seconds, seconds))

    comparison = Comparison("p", Case("a", lambda: None))
    by_bytes = harness.Outcome(comparison, timing(1.0, 300), (timing(2.0, 400),))
    assert by_bytes.ratio(by_bytes.baselines[0]) == pytest.approx(1.5)
    by_calls = harness.Outcome(comparison, timing(1.0, 0), (timing(3.0, 0),))
    assert by_calls.ratio(by_calls.baselines[0]) == pytest.approx(3.0)
    assert timing(2.0, 4 * 10**9).gbps == pytest.approx(2.0)


def problems() -> list[Comparison]:
    return [Comparison(p, Case("ours", lambda: None), goal=1.0) for p in ("small", "large")]


def test_results_are_written_with_machine_date_and_commit(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    outcomes = harness.main("x", problems(), ["--only", "small", "--json", str(path)])
    assert [outcome.comparison.problem for outcome in outcomes] == ["small"]
    content = json.loads(path.read_text())["benchmarks"]["x"]
    assert {"date", "commit", "cpu", "cpus", "instruction_set"} <= content["environment"].keys()
    (record,) = content["results"]
    assert record["problem"] == "small"
    assert record["ours"]["seconds"] > 0


def test_a_file_collects_several_benchmarks(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for name in ("x", "y", "x"):
        harness.main(name, problems(), ["--json", str(path)])
    found = json.loads(path.read_text())["benchmarks"]
    assert {name: len(content["results"]) for name, content in found.items()} == {"x": 2, "y": 2}


def test_one_round_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main("x", problems(), ["--rounds", "1"])
    assert "--rounds is 1" in capsys.readouterr().err


def document(low: float, middle: float, high: float) -> dict[str, object]:
    ours = {"name": "ours", "threads": 1, "seconds": middle, "quartiles": [low, high]}
    return {"benchmarks": {"x": {"results": [{"problem": "p", "ours": ours}]}}}


def test_compare_tells_a_change_from_noise() -> None:
    before = document(1.0, 1.1, 1.2)
    (slower,) = compare(before, document(1.3, 1.4, 1.5))
    assert slower.is_slower and "SLOWER" in str(slower) and "x 1.27" in str(slower)
    (faster,) = compare(before, document(0.5, 0.6, 0.7))
    assert faster.is_faster and not faster.is_slower
    (same,) = compare(before, document(1.1, 1.3, 1.5))
    assert not same.is_slower and not same.is_faster
    assert compare({"benchmarks": {}}, before) == []


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*/bench_*.py")), ids=lambda p: p.stem)
def test_every_benchmark_starts_by_itself(path: Path) -> None:
    name = f"benchmarks.{path.parent.name}.{path.stem}"
    command = [sys.executable, "-m", name, "--only", "no case has this name"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS.parent)
    assert done.returncode == 0, done.stderr
