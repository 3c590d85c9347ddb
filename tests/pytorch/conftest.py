# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every PyTorch test gets: fixed seeds, a fixed thread count, the `device` fixture."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)
from helpers.devices import TEST_DEVICE, available_devices
from helpers.ranks import is_under_torchrun, stop_all

SEED = 1234
# Two threads, so that the threaded paths run; one in a pytest-xdist worker or under torchrun, where
# the processes themselves fill the cores.
NUM_THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ or is_under_torchrun() else 2

# The same examples in every run, and no time limit for one example on a busy machine.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(params=available_devices(), ids=str)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device this machine and this build can compute on."""
    chosen: torch.device = request.param
    return chosen


if TEST_DEVICE != "cpu":  # for the constants of test files, which are made at import
    torch.set_default_device(TEST_DEVICE)


@pytest.fixture(autouse=True)
def default_device() -> Iterator[None]:
    """Factory functions make tensors on TEST_DEVICE; the CPU is torch's own default."""
    if TEST_DEVICE == "cpu":
        yield
        return
    with torch.device(TEST_DEVICE):
        yield


def pytest_runtest_setup() -> None:
    """A worker whose GPU context is broken ends: pytest-xdist starts another for the tests left.

    An illegal access breaks it for good: every later test of the process would fail for it. The
    test that is to run now is reported as the one that crashed.
    """
    if TEST_DEVICE != "cuda" or "PYTEST_XDIST_WORKER" not in os.environ:
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"this worker's GPU context is broken: {error}", file=sys.stderr, flush=True)
        os._exit(1)


@pytest.fixture(autouse=True)
def fixed_seeds_and_threads() -> None:
    """Every test draws the same numbers, alone or in a run."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    if torch.get_num_threads() != NUM_THREADS:
        torch.set_num_threads(NUM_THREADS)


def pytest_sessionfinish() -> None:
    stop_all()
