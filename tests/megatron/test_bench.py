# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of Megatron's TE layers runs; its gates are held in qa/L1_megatron_core."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("options", [(), ("--ranks", "2", "--sequence-parallel")])
def test_every_layer_is_timed_in_every_mode(run_python, options):
    arguments = ["--rounds", "3", "--calls", "2", *options]
    result = run_python("-m", "megatron_client.bench", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    for mode in ("forward", "no_grad", "forward+backward"):
        assert f"[{mode}]" in result.stdout
    assert result.stdout.count("TEColumnParallelLinear") >= 3
