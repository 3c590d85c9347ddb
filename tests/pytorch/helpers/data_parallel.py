# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model on several ranks, and the same model in one process that sees the batches of all ranks.

The twin runs each rank's rows by themselves, so that every format sees the numbers that it sees on
that rank; outputs are equal bit for bit, and gradients are the mean of the parts, computed in FP64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.recipes import RECIPES
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound
from transformer_engine.common.recipe import DelayedScaling, NVFP4BlockScaling, Recipe

ROWS, WIDTH = 128, 128
# Random bits differ between runs of a part; the other parts of the recipe stay.
ALL_RECIPES: dict[str, Recipe | None] = {
    "none": None,
    **RECIPES,
    "nvfp4": NVFP4BlockScaling(disable_stochastic_rounding=True),
}

# Those, and one whose scales follow each amax at once.
NAMED_RECIPES: dict[str, Recipe | None] = {
    **ALL_RECIPES,
    "recent": DelayedScaling(amax_history_len=2, amax_compute_algo="most_recent"),
}


def build(recipe: str, has_quantized_weights: bool = False, hidden: int = 256) -> Any:
    """Three modules with BF16 parameters; their weights have `hidden` rows, or multiples of it."""
    torch.manual_seed(3)
    options: dict[str, Any] = {"device": "cpu", "params_dtype": torch.bfloat16}
    with te.quantized_model_init(has_quantized_weights, recipe=NAMED_RECIPES[recipe]):
        return torch.nn.Sequential(
            te.Linear(WIDTH, hidden, name="a", **options),
            te.LayerNormLinear(hidden, hidden, name="b", **options),
            te.LayerNormMLP(hidden, hidden, name="c", **options),
        )


def input_of(step: int, rank: int) -> torch.Tensor:
    """What a rank sees in a step: bfloat16 [ROWS, WIDTH]."""
    return random_tensor((ROWS, WIDTH), seed=20 * step + rank, dtype=torch.bfloat16)


def region(recipe: str, group: Any = None) -> Any:
    """The region of a recipe by name."""
    if NAMED_RECIPES[recipe] is None:
        return contextlib.nullcontext()
    return te.autocast(recipe=NAMED_RECIPES[recipe], amax_reduction_group=group)


def run(model: Callable[..., torch.Tensor], recipe: str, step: int, rank: int) -> torch.Tensor:
    """Forward and backward of a rank's part; the output."""
    with region(recipe):
        output = model(input_of(step, rank))
    output.backward(gradient_of(output, step, rank))
    return output.detach()


def gradient_of(output: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """A loss's gradient: bfloat16, like the output."""
    return random_tensor(tuple(output.shape), seed=20 * step + rank + 10, dtype=torch.bfloat16)


class Twin:
    """One process with all batches.

    Parameters
    ----------
    recipe : str
    model : torch.nn.Module
        Equal to the one on the ranks before those are wrapped.
    size : int
        Number of ranks.
    """

    def __init__(self, recipe: str, model: Any, size: int):
        self.recipe, self.model, self.size = recipe, model, size
        self._alone = torch.distributed.new_subgroups(1)[0]

    def step(self, number: int) -> tuple[list[torch.Tensor], dict[str, list[torch.Tensor]]]:
        """Outputs, and gradients by parameter, of each rank's part."""
        parameters = dict(self.model.named_parameters())
        with region(self.recipe, self._alone):
            outputs = [self.model(input_of(number, rank)) for rank in range(self.size)]
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
        # The module that ends the step is the first one that ran, of the first part.
        for rank, output in reversed(list(enumerate(outputs))):
            gradients = torch.autograd.grad(
                output, list(parameters.values()), gradient_of(output, number, rank)
            )
            for name, gradient in zip(parameters, gradients, strict=True):
                parts[name].insert(0, gradient)
        return [output.detach() for output in outputs], parts

    def apply(self, gradients: dict[str, torch.Tensor], rate: float) -> None:
        """An SGD step with the gradients that the ranks have got."""
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients[name].clone()
        torch.optim.SGD(self.model.parameters(), lr=rate).step()
        self.model.zero_grad()


def plain(parameter: torch.Tensor) -> torch.Tensor:
    """The values in FP32, which holds those of every format."""
    value = parameter.detach()
    if isinstance(value, te.QuantizedTensor):
        result: torch.Tensor = value.dequantize(dtype=torch.float32)
        return result
    return value.float()


def assert_mean(actual: torch.Tensor, parts: list[torch.Tensor], name: str, steps: int = 1) -> None:
    """A gradient is the mean over ranks, and the sum over steps: one rounding for each of them."""
    exact = torch.stack([part.double() for part in parts])
    size = len(parts) // steps
    roundings = gamma(len(parts) + 1, actual.dtype) * exact.abs().sum(0) / size
    mean = exact.sum(0) / size
    assert_within(
        actual, mean, roundings + rounding_bound(mean.abs() + roundings, actual.dtype), name
    )


def assert_same_state(model: Any, twin: Any) -> None:
    """Delayed-scaling buffers are equal, bit for bit."""
    for module, other in zip(model, twin, strict=True):
        found, expected = module.get_fp8_meta_tensors(), other.get_fp8_meta_tensors()
        assert (found is None) == (expected is None)
        for key in found or {}:
            for mine, its in zip(found[key], expected[key], strict=True):
                assert_identical(mine, its, f"{module.name} {key}")
