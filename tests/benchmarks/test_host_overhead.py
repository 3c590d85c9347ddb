# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of host overhead: what is compared, how it is summarised, what the page says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.host_overhead import breakdown, megatron, report, results, timing
from benchmarks.host_overhead.bars import BARS
from benchmarks.host_overhead.cases import Case, Sizes, cases

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "host_overhead.json"
PAGE = ROOT / "docs" / "host_overhead.md"
TINY = Sizes(tokens=2, hidden=16, ffn=16, heads=1)


@pytest.fixture(scope="module")
def all_cases() -> dict[str, Case]:
    return {case.name: case for case in cases(TINY)}


def test_every_bar_compares_cases_that_exist_and_no_goal_is_easier_than_its_gate(all_cases):
    for bar in BARS:
        assert bar.ours in all_cases and bar.baseline in all_cases
        assert 0 < bar.goal <= bar.gate
        assert bar.upstream is None or bar.gate < bar.upstream
    assert len({bar.title for bar in BARS}) == len(BARS) >= 21


def test_every_case_runs_in_its_mode_and_reaches_every_leaf(all_cases):
    for case in all_cases.values():
        with timing.grad_mode(case):
            output = case.run()
        if case.name.endswith("chain"):
            assert all(leaf.grad is not None for leaf in case.leaves), case.name
            for leaf in case.leaves:
                leaf.grad = None
        elif isinstance(output, torch.Tensor):
            assert output.requires_grad == case.records, case.name


def test_parts_are_differences_of_variants_that_exist():
    names = {case.name for case in breakdown.variants(TINY)}
    for part in breakdown.PARTS:
        assert part.case in names and (part.without is None or part.without in names)


def test_each_round_gives_one_time_per_case_and_drops_gradients(monkeypatch, all_cases):
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.0)
    chosen = [all_cases["Linear fwd"], all_cases["Linear chain"]]
    samples = timing.measure(chosen, rounds=3, seed=1)
    assert {name: len(times) for name, times in samples.items()} == {
        "Linear fwd": 3,
        "Linear chain": 3,
    }
    assert all(time > 0 for times in samples.values() for time in times)
    assert all(leaf.grad is None for leaf in chosen[1].leaves)


def test_cost_is_the_ratio_within_rounds_and_the_middle_of_processes():
    bar = BARS[0]
    # Ours costs half in every round, whatever the clock does.
    steady = {bar.ours: [1.0, 3.0, 2.0], bar.baseline: [2.0, 6.0, 4.0]}
    assert results.cost(bar, [steady]).p20 == results.cost(bar, [steady]).high == 0.5
    slower = {bar.ours: [1.0, 1.0], bar.baseline: [1.0, 1.0]}
    worst = {bar.ours: [9.0, 9.0], bar.baseline: [1.0, 1.0]}
    assert results.cost(bar, [steady, slower, worst]).p20 == 1.0
    assert results.verdict(bar.goal, bar) == "goal"
    assert results.verdict(bar.gate, bar) == "gate"
    assert results.verdict(bar.gate * 1.01, bar) == "missed"


def test_rendering_replaces_what_stands_between_the_marks_only():
    document = json.loads(RESULTS.read_text())
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    rendered = report.render(page, document)
    assert "old" not in rendered
    assert rendered.startswith(f"before\n{report.BEGIN}\n")
    assert rendered.endswith(f"{report.END}\nafter\n")
    assert report.render(rendered, document) == rendered
    with pytest.raises(ValueError, match="page lacks the lines"):
        report.render("no marks", document)


def test_the_row_of_megatron_is_measured_or_says_what_is_missing():
    document = json.loads(RESULTS.read_text())
    bar = megatron.BAR
    samples = {bar.ours: [1.0, 1.0], bar.baseline: [4.0, 4.0]}
    measured = report.megatron_lines({**document, "megatron": results.row(bar, [samples])})
    assert "**0.25** (0.25)" in measured[0] and measured[0].endswith("goal.")
    missing = report.megatron_lines({**document, "megatron": "No module named 'megatron'"})
    assert "not measured" in missing[0] and "No module named 'megatron'" in missing[0]


def test_the_page_holds_the_committed_measurements():
    page = PAGE.read_text()
    assert page == report.render(page, json.loads(RESULTS.read_text()))


def test_the_committed_measurements_hold_every_bar_and_both_kinds_of_kernels():
    document = json.loads(RESULTS.read_text())
    assert list(document["benchmarks"]) == [
        f"{report.PREFIX}{kernels}" for kernels in ("allocate-only", "real")
    ]
    for content in document["benchmarks"].values():
        assert {"date", "commit", "cpu", "torch"} <= set(content["environment"])
        for bar, result in zip(BARS, content["results"], strict=True):
            stated = (result["problem"], result["upstream"], result["gate"], result["goal"])
            assert stated == (bar.title, bar.upstream, bar.gate, bar.goal)
            assert result["met"] == results.verdict(result["cost"]["p20"], bar)


def missing_tools() -> list[str]:
    return [tool for tool in ("cmake", "ninja", "c++") if shutil.which(tool) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {missing_tools()}")
def test_allocate_only_kernels_are_in_force_on_both_sides_and_real_ones_stay():
    code = """
import json, sys
from benchmarks.host_overhead import allocate_only
allocate_only.build()
counts = allocate_only.load()
import torch
import transformer_engine.pytorch as te
modules = te.Linear(16, 16, device="cpu"), torch.nn.Linear(16, 16)
x = torch.ones(2, 16)
found = []
for module in modules:
    module(x)
    found.append(counts.read())
print(json.dumps(found))
try:
    allocate_only.load()
except RuntimeError as error:
    print(error)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    ours_then_theirs, refusal = process.stdout.splitlines()
    assert json.loads(ours_then_theirs) == [[1, 0], [1, 1]]
    assert "transformer_engine_torch is imported already" in refusal
    # In this process nothing was replaced.
    module = torch.nn.Linear(16, 16)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.zeros_(module.bias)
    assert torch.equal(module(torch.ones(2, 16)), torch.full((2, 16), 16.0))
