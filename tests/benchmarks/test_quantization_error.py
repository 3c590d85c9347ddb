# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The errors of every format: what is measured, and what docs/numerics.md says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import quantization_error

ROOT = Path(__file__).resolve().parents[2]
OVERVIEW = (ROOT / "docs" / "numerics.md").read_text()
FOLDER = ROOT / "docs" / "numerics"
COMMITTED = json.loads((FOLDER / "quantization_error.json").read_text())


def test_the_overview_shows_the_committed_errors():
    assert quantization_error.render(OVERVIEW, COMMITTED) == OVERVIEW
    for by_format in COMMITTED.values():
        assert list(by_format) == [fmt.name for fmt in quantization_error.FORMATS]
    assert (FOLDER / "quantization_error.png").read_bytes().startswith(b"\x89PNG")


def test_the_committed_errors_are_those_of_the_library():
    name = "beside outliers"
    torch.manual_seed(list(quantization_error.TENSORS).index(name))
    x, columns = quantization_error.TENSORS[name](), quantization_error.looked_at(name)
    for fmt in quantization_error.FORMATS:
        found = quantization_error.measure_one(fmt, x, columns)
        committed = COMMITTED[name][fmt.name]
        # The last bits of torch.randn may differ from machine to machine.
        assert found["snr_db"] == pytest.approx(committed["snr_db"], abs=0.05), fmt.name
        assert found["flushed"] == pytest.approx(committed["flushed"], abs=1e-4), fmt.name


def test_the_profile_is_the_mean_error_by_magnitude():
    exact_values = torch.tensor([1.0] * 10 + [0.25] * 10 + [0.0, 2.0**-30])
    values = torch.tensor([1.5] * 10 + [0.25] * 9 + [0.5] + [1.0, 0.0])
    found = quantization_error.profile(exact_values, values)
    assert found[-1] == 0.5  # of 1: half of it, every one
    assert found[-2] == pytest.approx(0.1**0.5, abs=1e-6)  # of 1/4: one of ten is doubled
    assert found[:-2] == [None] * (quantization_error.BINS - 2)  # too few


def test_a_run_prints_and_writes_what_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quantization_error, "measure", lambda: COMMITTED)
    page = tmp_path / "page.md"
    page.write_text(f"a\n{quantization_error.BEGIN}\nold\n{quantization_error.END}\nb\n")
    files = {"--json": tmp_path / "errors.json", "--plot": tmp_path / "errors.png", "--page": page}
    assert quantization_error.main([str(x) for pair in files.items() for x in pair]) == 0
    assert json.loads(files["--json"].read_text()) == COMMITTED
    assert files["--plot"].read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.startswith("a\n") and text.endswith("b\n") and "old" not in text
    assert "| NVFP4, 16 x 16 |" in text and "| NVFP4, 16 x 16 |" in capsys.readouterr().out
