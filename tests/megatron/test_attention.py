# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Megatron's TE attention gives what its own attention gives, under every mask it passes."""

from __future__ import annotations

import json

import pytest
import torch

CASES = (
    *("causal", "no_mask", "padding", "padding_causal", "arbitrary"),
    *("grouped queries", "one split"),
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def differences(run_python) -> dict[str, float]:
    result = run_python("-m", "megatron_client.attention")
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_equal_those_of_native_attention(differences, case):
    """Two products of 16 terms each, summed in another order, of values below 4."""
    assert differences[case] <= (16 + 16) * 4 * torch.finfo(torch.float32).eps


def test_every_case_is_tested(differences):
    assert sorted(differences) == sorted(CASES)
