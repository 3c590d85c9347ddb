# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel modules and the module of a single rank that they must equal.

Written from the definition: a column-parallel layer has rows of the weight (of a gated MLP of each
half), a row-parallel one columns; with sequence parallelism ranks have rows of the input or output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import transformer_engine.pytorch as te

from .generators import random_tensor
from .modules import randomize

IN, OUT, FFN = 64, 96, 128
KINDS = ("column", "row", "LayerNormLinear", "LayerNormMLP", "gated LayerNormMLP")


def build(kind: str, **keywords: Any) -> torch.nn.Module:
    """A module of that kind; whole, or a rank's part with a `tp_group`."""
    keywords = {"device": "cpu", **keywords}
    if kind in ("column", "row"):
        return te.Linear(IN, OUT, parallel_mode=kind, **keywords)
    if kind == "LayerNormLinear":
        return te.LayerNormLinear(IN, OUT, parallel_mode="column", **keywords)
    activation = "swiglu" if kind.startswith("gated") else "gelu"
    return te.LayerNormMLP(IN, FFN, activation=activation, set_parallel_mode=True, **keywords)


@dataclass(frozen=True)
class Cut:
    """How a rank's part is taken from a whole tensor."""

    rank: int
    ranks: int

    def rows(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.chunk(self.ranks, dim=0)[self.rank].clone()

    def columns(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.chunk(self.ranks, dim=-1)[self.rank].clone()

    def halves(self, whole: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.rows(half) for half in whole.chunk(2, dim=0)])

    def parameter(self, kind: str, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the parameter `name`."""
        if name.startswith("layer_norm") or name == "fc2_bias" or (kind, name) == ("row", "bias"):
            return whole.clone()
        if name == "fc2_weight" or kind == "row":
            return self.columns(whole)
        return self.halves(whole) if kind.startswith("gated") else self.rows(whole)

    def input(self, kind: str, whole: torch.Tensor, *, sequence: bool) -> torch.Tensor:
        if kind == "row":
            return self.columns(whole)
        return self.rows(whole) if sequence else whole.clone()

    def output(self, kind: str, whole: torch.Tensor, *, sequence: bool) -> torch.Tensor:
        if kind in ("column", "LayerNormLinear"):
            return self.columns(whole)
        return self.rows(whole) if sequence else whole.clone()


@dataclass(frozen=True)
class Pair:
    """A whole module and this rank's part of it."""

    kind: str
    cut: Cut
    sequence: bool
    dtype: torch.dtype
    single: Any
    part: Any

    @property
    def modules(self) -> tuple[Any, Any]:
        return self.single, self.part


def make_pair(kind: str, cut: Cut, *, sequence: bool, dtype: torch.dtype, **keywords: Any) -> Pair:
    """Both with the same parameters."""
    single = build(kind, params_dtype=dtype, **keywords)
    randomize(single)
    part = build(
        kind,
        params_dtype=dtype,
        tp_group=torch.distributed.group.WORLD,
        sequence_parallel=sequence,
        **keywords,
    )
    wholes = dict(single.named_parameters())
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            parameter.copy_(cut.parameter(kind, name, wholes[name]))
    return Pair(kind, cut, sequence, dtype, single, part)


def whole_tensors(
    kind: str, rows: int, dtype: torch.dtype, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and gradient of the output of the whole module: [rows, 2, ...]."""
    out = IN if "MLP" in kind else OUT
    x = random_tensor((rows, 2, IN), seed=seed, dtype=dtype)
    return x, random_tensor((rows, 2, out), seed=seed + 1, dtype=dtype)


def step(module: Any, x: torch.Tensor, gradient: torch.Tensor, **call: Any) -> dict[str, Any]:
    """One forward and backward: "output", "inp" and the gradients of parameters."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    output = module(x, **call)
    output = output[0] if isinstance(output, tuple) else output
    output.backward(gradient)
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {"output": output.detach(), "inp": x.grad, **found}


def sum_marked(module: Any, found: dict[str, Any]) -> dict[str, Any]:
    """What a trainer does: adds up gradients of parameters marked `sequence_parallel`."""
    result = dict(found)
    for name, parameter in module.named_parameters():
        if getattr(parameter, "sequence_parallel", False):
            result[name] = found[name].float()
            torch.distributed.all_reduce(result[name])
    return result


def cut_results(
    kind: str, cut: Cut, results: dict[str, torch.Tensor], *, sequence: bool
) -> dict[str, torch.Tensor]:
    """The part that a rank should have of the results of the whole module."""
    expected = {}
    for name, whole in results.items():
        if name == "inp":
            expected[name] = cut.input(kind, whole, sequence=sequence)
        elif name == "output":
            expected[name] = cut.output(kind, whole, sequence=sequence)
        else:
            expected[name] = cut.parameter(kind, name, whole)
    return expected
