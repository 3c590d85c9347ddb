# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests/pytorch/overhead runs, and the table of what it may cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)

from .counters import run_backward

TOKENS, HIDDEN, FFN, HEADS = 4, 32, 64, 2

RECIPES: dict[str, Callable[[], Recipe] | None] = {
    "BF16": None,
    "delayed": DelayedScaling,
    "current": Float8CurrentScaling,
    "block": Float8BlockScaling,
    "mxfp8": MXFP8BlockScaling,
    "nvfp4": NVFP4BlockScaling,
}


def _options() -> dict[str, Any]:
    return {"params_dtype": torch.bfloat16, "device": "cpu"}


def _norm_options() -> dict[str, Any]:
    return {"dtype": torch.bfloat16, "device": "cpu"}


MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "Linear": lambda: te.Linear(HIDDEN, HIDDEN, **_options()),
    "LayerNormLinear": lambda: te.LayerNormLinear(HIDDEN, HIDDEN, **_options()),
    "LayerNormMLP": lambda: te.LayerNormMLP(HIDDEN, FFN, **_options()),
    "LayerNorm": lambda: te.LayerNorm(HIDDEN, **_norm_options()),
    "RMSNorm": lambda: te.RMSNorm(HIDDEN, **_norm_options()),
    "DotProductAttention": lambda: te.DotProductAttention(
        HEADS, HIDDEN // HEADS, attn_mask_type="causal", attention_dropout=0.0
    ),
    "MultiheadAttention": lambda: te.MultiheadAttention(
        HIDDEN, HEADS, attention_dropout=0.0, input_layernorm=True, **_options()
    ),
    "TransformerLayer": lambda: te.TransformerLayer(
        *(HIDDEN, FFN, HEADS), hidden_dropout=0.0, attention_dropout=0.0, **_options()
    ),
}


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one call may do.

    Attributes
    ----------
    calls, calls_with_backward : int
        Frames and C functions that Python sees; the backward alone is 2 of them.
    nodes : int
        Autograd nodes made.
    allocations, allocations_with_backward : dict
        Recipe -> tensors allocated.
    """

    calls: int
    calls_with_backward: int
    nodes: int
    allocations: dict[str, int]
    allocations_with_backward: dict[str, int]


def _allocations(*counts: int) -> dict[str, int]:
    return dict(zip(RECIPES, counts, strict=True))


@dataclass(frozen=True, slots=True)
class Subject:
    """A module with its inputs, in a recipe."""

    module: Any
    inputs: tuple[Tensor, ...]
    grad: Tensor
    recipe: Recipe | None

    @property
    def forward(self) -> Callable[[], Any]:
        """One call, without a Python frame of its own."""
        return functools.partial(self.module, *self.inputs)

    def forward_backward(self) -> Tensor:
        """One call and the backward through it; the gradients are dropped by `drop_gradients`."""
        output: Tensor = self.module(*self.inputs)
        run_backward(output, self.grad)
        return output

    def drop_gradients(self) -> None:
        """As a step's `zero_grad` does."""
        for leaf in (*self.inputs, *self.module.parameters()):
            leaf.grad = None

    @contextmanager
    def region(self) -> Iterator[None]:
        """The recipe's autocast region; none in BF16."""
        with te.autocast(enabled=self.recipe is not None, recipe=self.recipe):
            yield


def make_subject(kind: str, recipe: str = "BF16", module: torch.nn.Module | None = None) -> Subject:
    """A module (a new one, or `module`) that has run often enough to be set up."""
    make_recipe = RECIPES[recipe]
    module = MODULES[kind]() if module is None else module
    width = (HEADS, HIDDEN // HEADS) if kind == "DotProductAttention" else (HIDDEN,)
    count = 3 if kind == "DotProductAttention" else 1
    inputs = tuple(
        torch.randn(TOKENS, 1, *width, dtype=torch.bfloat16).requires_grad_() for _ in range(count)
    )
    with torch.no_grad():
        grad = torch.randn_like(module(*inputs))
    subject = Subject(module, inputs, grad, None if make_recipe is None else make_recipe())
    for _ in range(3):
        with subject.region():
            output = module(*inputs)
        run_backward(output, grad)
        subject.drop_gradients()
    return subject


# The attention modules are Python that composes native steps with torch's attention operator; the
# others are one call into C. The operator's own buffer counts among the allocations.
LIMITS: dict[str, Limit] = {
    "Linear": Limit(0, 3, 1, _allocations(1, 5, 5, 7, 9, 10), _allocations(4, 10, 10, 14, 16, 19)),
    "LayerNormLinear": Limit(
        0, 3, 1, _allocations(4, 7, 8, 10, 12, 13), _allocations(10, 15, 16, 20, 22, 25)
    ),
    "LayerNormMLP": Limit(
        0, 3, 1, _allocations(6, 12, 14, 18, 22, 24), _allocations(16, 25, 28, 36, 40, 46)
    ),
    "LayerNorm": Limit(0, 3, 1, _allocations(3, 3, 3, 3, 3, 3), _allocations(6, 6, 6, 6, 6, 6)),
    "RMSNorm": Limit(0, 3, 1, _allocations(2, 2, 2, 2, 2, 2), _allocations(4, 4, 4, 4, 4, 4)),
    "DotProductAttention": Limit(
        15, 18, 1, _allocations(4, 4, 4, 4, 4, 4), _allocations(10, 10, 10, 10, 10, 10)
    ),
    "MultiheadAttention": Limit(
        23, 26, 4, _allocations(9, 16, 17, 21, 25, 27), _allocations(25, 36, 37, 45, 49, 55)
    ),
    "TransformerLayer": Limit(
        29, 32, 7, _allocations(17, 30, 33, 41, 49, 53), _allocations(44, 64, 68, 84, 92, 104)
    ),
}
REGION_CALLS = dict.fromkeys([name for name in RECIPES if name != "BF16"], 1)
