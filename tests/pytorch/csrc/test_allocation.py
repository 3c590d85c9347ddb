# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Large results are written to huge pages where the system has them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

import transformer_engine_torch as tex

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIB = 1 << 20


def huge_pages_on_request() -> bool:
    return SWITCH.exists() and "[never]" not in SWITCH.read_text()


@pytest.mark.skipif(not huge_pages_on_request(), reason="the system has no huge pages on request")
def test_a_large_result_costs_few_page_faults() -> None:
    torch.set_num_threads(1)
    x = torch.ones(64 * MIB // 2, dtype=torch.bfloat16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    result = tex.relu(x)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert torch.equal(result, x)
    # One per small page would be 16384; the ends of the block and unlucky huge pages stay small.
    assert faults < 64 * MIB // resource.getpagesize() // 2
