# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report: every fact it promises, in each of its three forms, and without torch."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import torch

import transformer_engine
import transformer_engine_torch as tex
from transformer_engine.common import loader


def run(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


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
