# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""One thread for the tests of this folder."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(fixed_seeds_and_threads: None) -> None:
    """Hundreds of tiny problems: waking a second thread costs more than the work."""
    torch.set_num_threads(1)
