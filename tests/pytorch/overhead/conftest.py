# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""One thread: what is counted here happens on the calling one."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(fixed_seeds_and_threads: None) -> None:
    torch.set_num_threads(1)
