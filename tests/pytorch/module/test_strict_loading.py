# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Strict loading of weights whose recipe state is absent, and without numpy."""

import subprocess
import sys

import pytest
import torch

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

_LOAD_WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None  # an import of it fails, as where it is not installed
import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling
source, target = te.Linear(16, 8), te.Linear(16, 8)
with te.autocast(recipe=DelayedScaling(amax_history_len=2)):
    source(torch.ones(2, 16))
target.load_state_dict(source.state_dict())
assert torch.equal(target.get_extra_state(), source.get_extra_state())
print("loaded")
"""


def _trained() -> te.Linear:
    module = te.Linear(16, 8)
    with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
        module(torch.full((3, 16), 5.0))
    return module


def test_absent_extra_state_means_a_fresh_recipe_state() -> None:
    module = _trained()
    scale = module.fp8_meta["scaling_fwd"].scale
    assert (scale[:2] != 1).all()
    weights = {key: value for key, value in module.state_dict().items() if "extra" not in key}
    module.load_state_dict(weights, strict=True)
    assert torch.equal(scale, torch.ones_like(scale))
    assert not module.fp8_meta["scaling_fwd"].amax_history.any()


def test_loading_nothing_for_a_module_leaves_its_recipe_state() -> None:
    model = torch.nn.ModuleDict({"a": _trained(), "b": te.Linear(16, 8)})
    scale = model["a"].fp8_meta["scaling_fwd"].scale.clone()
    model.load_state_dict({"b.weight": model["b"].weight.detach()}, strict=False)
    assert torch.equal(model["a"].fp8_meta["scaling_fwd"].scale, scale)


@pytest.mark.slow
def test_a_state_dict_loads_without_numpy() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOAD_WITHOUT_NUMPY],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "loaded", result.stderr
