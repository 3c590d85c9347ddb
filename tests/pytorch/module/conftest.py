# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of modules share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def one_thread(fixed_seeds_and_threads: None) -> None:
    """Compute in the calling thread.

    For tests of small sizes without an interest in threads: handing such work to threads takes
    longer than the work, and much longer on a busy machine. The next test starts with the suite's
    own number again.
    """
    torch.set_num_threads(1)
