# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules beside their torch.nn twins: the same parameters, written with torch's own functions.

What a module does with hooks, graphs and attributes must be what its twin does. Numbers are
compared bit by bit with another run of the module itself, so no tolerance is needed here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Recipe

from .modules import KINDS, LINEAR_KINDS, make, make_input

RECIPES: dict[str, Recipe | None] = {
    "plain": None,
    "delayed": DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling(),
}


class Twin(torch.nn.Module):
    """The module of that kind in plain torch, with copies of a module's parameters."""

    weight: torch.Tensor
    bias: torch.Tensor
    layer_norm_weight: torch.Tensor
    layer_norm_bias: torch.Tensor
    fc1_weight: torch.Tensor
    fc1_bias: torch.Tensor
    fc2_weight: torch.Tensor
    fc2_bias: torch.Tensor

    def __init__(self, kind: str, module: torch.nn.Module) -> None:
        super().__init__()
        self.kind = kind
        for name, parameter in module.named_parameters():
            copy = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            self.register_parameter(name, copy)

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        kind, shape = self.kind, inp.shape[-1:]
        if kind == "LayerNorm":
            return functional.layer_norm(inp, shape, self.weight, self.bias)
        if kind == "RMSNorm":
            return functional.rms_norm(inp, shape, self.weight)
        if kind == "Linear":
            return functional.linear(inp, self.weight, self.bias)
        inp = functional.layer_norm(inp, shape, self.layer_norm_weight, self.layer_norm_bias)
        if kind == "LayerNormLinear":
            return functional.linear(inp, self.weight, self.bias)
        inner = functional.linear(inp, self.fc1_weight, self.fc1_bias)
        inner = functional.gelu(inner, approximate="tanh")
        return functional.linear(inner, self.fc2_weight, self.fc2_bias)


@dataclass(frozen=True)
class Case:
    """A kind of module in a dtype under a recipe."""

    kind: str
    dtype: torch.dtype = torch.float32
    recipe: str = "plain"

    def __str__(self) -> str:
        return f"{self.kind}-{str(self.dtype).removeprefix('torch.')}-{self.recipe}"

    def make(self, **keywords: Any) -> Any:
        """The same module in each call."""
        return make(self.kind, params_dtype=self.dtype, **keywords)

    def twin(self) -> Twin:
        """The twin of what `make` gives."""
        return Twin(self.kind, self.make())

    def input(self, *shape: int, seed: int = 1) -> torch.Tensor:
        """A leaf that wants a gradient, the same in each call."""
        return make_input(*shape, dtype=self.dtype, seed=seed)

    def region(self) -> AbstractContextManager[Any]:
        """The recipe's quantized region."""
        recipe = RECIPES[self.recipe]
        return nullcontext() if recipe is None else te.autocast(recipe=recipe)

    def __call__(self, module: torch.nn.Module, *args: Any, **keywords: Any) -> Any:
        """Call the module inside the region."""
        with self.region():
            return module(*args, **keywords)

    @property
    def input_name(self) -> str:
        """What forward calls its input."""
        return "input" if self.kind.endswith("Norm") else "inp"

    @property
    def weight_name(self) -> str:
        """A parameter that every kind has in some form."""
        return "fc1_weight" if self.kind == "LayerNormMLP" else "weight"


PLAIN_CASES = [Case(kind) for kind in KINDS]
DTYPE_CASES = PLAIN_CASES + [Case(kind, torch.bfloat16) for kind in KINDS]
QUANTIZED_CASES = [
    Case(kind, dtype, recipe)
    for kind in LINEAR_KINDS
    for dtype, recipe in ((torch.float32, "current"), (torch.bfloat16, "delayed"))
]
ALL_CASES = DTYPE_CASES + QUANTIZED_CASES


def describe(value: Any) -> Any:
    """Structure, shapes and dtypes, without values."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(describe(item) for item in value)
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, torch.nn.Module):
        return "module"
    return value


def outcome(body: Any) -> Any:
    """What a call gives: its described result, or the type of what it raises."""
    try:
        return describe(body())
    except Exception as error:  # compared with the twin's
        return type(error)
