# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures and markers of all PyTorch tests."""

import pytest
import torch

from helpers.devices import available_devices


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: a few seconds in all; run before every merge")
    config.addinivalue_line("markers", "slow: over two seconds")


@pytest.fixture(params=available_devices(), ids=str)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device this machine and this build can compute on."""
    chosen: torch.device = request.param
    return chosen


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same numbers, alone or in a run."""
    torch.manual_seed(1234)
