# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""README.md and the guide: their code runs, their tables and links are true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = [ROOT / "README.md", ROOT / "docs" / "fp8_training.md"]
UNPROVEN = "compiled, executed on the CPU"  # not run on a GPU: docs/cuda.md


def snippets(page: Path) -> str:
    """The Python code of a page, in order."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))


def table_under(heading: str) -> list[list[str]]:
    """The body rows of the first table under a heading of README.md."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_code_runs_from_another_folder(page, tmp_path):
    code = snippets(page)
    assert code.count("te.autocast(") >= 1
    process = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_the_readme_example_learns(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", snippets(RUNNABLE[0])], capture_output=True, text=True, cwd=tmp_path
    )
    losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", process.stdout)]
    assert len(losses) == 5 and losses[-1] < losses[0]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_folders_of_the_map_exist():
    section = README.split("## Folders\n")[1].split("\n## ")[0]
    folders = re.findall(r"^    ((?:\S+/ +)+)", section, flags=re.MULTILINE)
    names = [name for line in folders for name in line.split()]
    assert len(names) >= 9
    assert [name for name in names if not (ROOT / name).is_dir()] == []


def run_linear(dtype: torch.dtype, recipe: object = None) -> None:
    layer = te.Linear(16, 16, params_dtype=dtype, device="cpu")
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = layer(torch.randn(3, 16, dtype=dtype))
    y.sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_the_formats_that_run_here_are_those_of_the_table():
    cpu, cuda = (
        {row[0]: row[column] for row in table_under("Formats and devices")} for column in (1, 2)
    )
    assert set(cuda.values()) == {UNPROVEN}
    assert cpu.pop("FP32, BF16, FP16") == "yes"
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        run_linear(dtype)
    for name, recipe in (("delayed", DelayedScaling()), ("current", Float8CurrentScaling())):
        assert cpu.pop(f"FP8, {name} scaling") == "yes"
        run_linear(torch.bfloat16, recipe)
    assert cpu == {"MXFP8, FP8 blocks, NVFP4, custom recipes": "yes"}
    custom = CustomRecipe(qfactory=lambda role: te.IdentityQuantizer())
    for recipe in (MXFP8BlockScaling(), Float8BlockScaling(), NVFP4BlockScaling(), custom):
        run_linear(torch.bfloat16, recipe)


def measured() -> dict[str, dict]:
    """Problem and threads -> result, of the file that README.md names."""
    name = re.search(r"\((benchmarks/results/[^)]+\.json)\)", README).group(1)
    document = json.loads((ROOT / name).read_text())
    return {
        f"{result['problem']}, {result['ours']['threads']} thread(s)": result
        for content in document["benchmarks"].values()
        for result in content["results"]
    }


def test_the_speed_table_holds_the_committed_measurements():
    results = measured()
    rows = table_under("Speed")
    assert len(rows) >= 8
    for problem, ours, baseline, ratio in rows:
        result = results[problem]
        assert f"{result['ours']['seconds'] * 1e6:.0f} us" == ours
        first = result["baselines"][0]
        assert baseline == f"{first['name']}, {first['seconds'] * 1e6:.0f} us"
        assert ratio == f"{first['ratio']:.2f}"


def test_the_speed_table_names_date_and_hardware():
    name = re.search(r"\((benchmarks/results/[^)]+\.json)\)", README).group(1)
    section = README.split("## Speed\n")[1].split("\n## ")[0]
    for content in json.loads((ROOT / name).read_text())["benchmarks"].values():
        environment = content["environment"]
        for fact in (environment["date"][:10], environment["cpu"], environment["torch"]):
            assert fact in section
