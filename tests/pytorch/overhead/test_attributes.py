# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plain attributes of modules are assigned without nn.Module's search for tensors and modules."""

from __future__ import annotations

import torch

from helpers.counters import python_calls
from helpers.overhead import MODULES

SEARCH = "torch.nn.modules.module.Module.__setattr__"


def _assign(module: torch.nn.Module) -> None:
    module.fuse_wgrad_accumulation = False


def test_plain_attributes_skip_the_search():
    module = MODULES["Linear"]()
    assert python_calls(lambda: _assign(module))[SEARCH] == 0
    assert "fuse_wgrad_accumulation" in vars(module)


def test_the_search_is_noticed():
    assert python_calls(lambda: _assign(torch.nn.Linear(2, 2)))[SEARCH] > 0


def test_parameters_and_modules_are_still_registered():
    module = MODULES["Linear"]()
    module.weight = torch.nn.Parameter(torch.zeros(2, 2))
    module.child = torch.nn.Identity()
    assert module._parameters["weight"].shape == (2, 2)
    assert "child" in module._modules and "child" not in vars(module)
