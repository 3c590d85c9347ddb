# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report: every fact it promises, in each of its three forms, and without torch."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transformer_engine
import transformer_engine_torch as tex
from transformer_engine.common import loader


def run(*arguments: str, path: Path | None = None) -> str:
    """Standard output of a fresh interpreter, which sees `path` first; it prints no error."""
    command = [sys.executable, "-W", "error", *arguments]
    paths = filter(None, (str(path or ""), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_data_holds_versions_devices_and_every_backend():
    facts = transformer_engine.report.collect()
    assert facts.versions["transformer_engine"] == loader.package_version()
    assert facts.versions["torch"] == torch.__version__
    assert "cpu" in facts.devices
    assert [backend.name for backend in facts.backends] == [
        row["name"] for row in tex.backend_statuses()
    ]


def test_text_gives_for_each_missing_backend_reason_effect_and_remedy():
    text = io.StringIO()
    transformer_engine.report(text)
    missing = [row for row in tex.backend_statuses() if not row["available"]]
    assert missing, "this build is expected to lack a backend"
    for row in missing:
        for word in ("name", "reason", "disables", "remedy"):
            assert row[word] and row[word] in text.getvalue()


def test_variables_that_are_set_are_listed(monkeypatch):
    monkeypatch.setenv("NVTE_NVFP4_4OVER6", "weights")
    assert "NVTE_NVFP4_4OVER6  weights" in str(transformer_engine.report.collect())


def test_a_second_call_still_works():
    for _ in range(2):
        transformer_engine.report(io.StringIO())


@pytest.mark.slow
def test_the_command_prints_text_without_a_warning():
    assert loader.package_version() in run("-m", "transformer_engine.report")


@pytest.mark.slow
def test_the_command_prints_json():
    facts = json.loads(run("-m", "transformer_engine.report", "--json"))
    assert set(facts) == {"versions", "devices", "backends", "environment"}


def test_without_torch_the_report_says_so():
    code = "import sys; sys.modules['torch'] = None\n"
    code += "import transformer_engine as te; te.report()"
    text = run("-c", code)
    assert "torch is not installed" in text
    assert "transformer_engine.pytorch: all modules" in text


def break_core(package: Path) -> str:
    (package / loader.CORE_FILE).unlink()
    return loader.CORE_FILE


def truncate_core(package: Path) -> str:
    os.truncate(package / loader.CORE_FILE, 10000)
    return f"{loader.CORE_FILE}: found a truncated file"


def break_binding(package: Path) -> str:
    path = loader.torch_extension_path(package)
    path.unlink()
    return path.name


def break_build_info(package: Path) -> str:
    (package / loader.BUILD_INFO_FILE).write_text("{")
    return loader.BUILD_INFO_FILE


@pytest.mark.slow
@pytest.mark.parametrize("damage", [break_core, truncate_core, break_binding, break_build_info])
def test_the_command_tells_what_is_broken_and_how_to_mend_it(copy, damage):
    broken = damage(copy / "transformer_engine")
    text = run("-m", "transformer_engine.report", path=copy)
    for title in ("versions", "devices", "backends", "environment variables"):
        assert title in text
    assert broken in text and "remedy:   Rebuild it" in text and "does not import" in text
    (backend,) = json.loads(run("-m", "transformer_engine.report", "--json", path=copy))["backends"]
    assert broken in backend["reason"] and "pip install" in backend["remedy"]
    assert backend["available"] is False


@pytest.mark.slow
def test_the_command_names_a_torch_that_does_not_import(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: no such file')")
    text = run("-m", "transformer_engine.report", path=tmp_path)
    assert "does not import (OSError: libtorch.so: no such file)" in text
    assert "remedy:   Repair torch" in text


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_reader_that_closes_the_pipe_is_no_error(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "transformer_engine.report", *arguments]
        result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd="/")
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")
