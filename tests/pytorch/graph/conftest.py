# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs of the CPU, also where the other tests run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from transformer_engine.pytorch.quantization import FP8GlobalStateManager


@pytest.fixture(autouse=True)
def fresh_state_on_the_cpu(default_device: None) -> Iterator[None]:
    """No region, no registered module, no flag; tensors are made on the CPU."""
    FP8GlobalStateManager.reset()
    with torch.device("cpu"):
        yield
    FP8GlobalStateManager.reset()
