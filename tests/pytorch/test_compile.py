# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules under torch.compile: the first FP8 call may be inside the compiled function."""

from __future__ import annotations

import copy

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.devices import TEST_DEVICE
from helpers.generators import random_tensor
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

RECIPES = {"current": Float8CurrentScaling, "delayed": DelayedScaling}
OPTIONS = {"params_dtype": torch.bfloat16, "device": TEST_DEVICE}
MODULES = {
    "Linear": lambda: te.Linear(32, 16, **OPTIONS),
    "TransformerLayer": lambda: te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, **OPTIONS
    ),
}


def train(function, module: torch.nn.Module) -> list[torch.Tensor]:
    """Outputs and gradients of two steps."""
    results = []
    for step in range(2):
        x = random_tensor((8, 2, 32), seed=step, dtype=torch.bfloat16).requires_grad_()
        out = function(x)
        out.backward(random_tensor(out.shape, seed=step + 9, dtype=out.dtype))
        results += [out.detach(), x.grad]
    return results + [parameter.grad for parameter in module.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "region_is_inside"), [("Linear", True), ("TransformerLayer", False)]
)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_the_first_fp8_call_may_be_compiled(recipe, kind, region_is_inside):
    torch._dynamo.reset()
    module = MODULES[kind]()
    twin = copy.deepcopy(module)

    def in_region(forward):
        def run(x):
            with te.autocast(recipe=RECIPES[recipe]()):
                return forward(x)

        return run

    if region_is_inside:
        compiled = torch.compile(in_region(module), backend="eager")
    else:
        compiled = in_region(torch.compile(module, backend="eager"))
    results = train(compiled, module)
    for got, expected in zip(results, train(in_region(twin), twin), strict=True):
        assert torch.equal(got, expected)
