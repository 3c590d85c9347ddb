# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A forward of Megatron's TE column layer costs the host no more than one of its native layer."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("options", [(), ("--ranks", "2", "--sequence-parallel")])
def test_column_layers_cost_no_more_than_native_ones(run_python, options):
    """Ratios of times in one process, taken in turns, so that load does not decide."""
    arguments = ["--gate", "--rounds", "60", "--calls", "5", *options]
    result = run_python("-m", "megatron_client.bench", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    for mode in ("forward", "no_grad", "forward+backward"):
        assert f"[{mode}]" in result.stdout
