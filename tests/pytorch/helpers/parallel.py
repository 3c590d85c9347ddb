# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel modules and the module of a single rank that they must equal.

Written from the definition: a column-parallel layer has rows of the weight (of a gated MLP of each
half), a row-parallel one columns; with sequence parallelism ranks have rows of the input or output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import transformer_engine.pytorch as te

from .formats import E4M3
from .generators import random_tensor
from .module_reference import ACTIVATIONS
from .modules import randomize
from .tolerances import block_scale, rescaled_matmul_bound

IN, OUT, FFN = 64, 96, 128
RANKS = 2  # that FP8 blocks are cut for
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


def make_pair(
    kind: str,
    cut: Cut,
    *,
    sequence: bool,
    dtype: torch.dtype,
    prepare: Callable[[Any], None] = randomize,
    **keywords: Any,
) -> Pair:
    """Both with the same parameters, those of `prepare`."""
    single = build(kind, params_dtype=dtype, **keywords)
    prepare(single)
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


def _ranks_parts(weight: torch.Tensor) -> torch.Tensor:
    """Rows of a weight of an MLP as ranks have them, [parts, rows, columns]; a view."""
    return weight.unflatten(0, (-1, FFN // RANKS))


def randomize_with_one_scale(mlp: Any) -> None:
    """Every rank's part of a weight gets an element of the largest magnitude."""
    randomize(mlp)
    with torch.no_grad():
        for weight in (mlp.fc1_weight, mlp.fc2_weight.t()):
            _ranks_parts(weight)[:, 0, 0] = weight.abs().max()


def rescaled_mlp_bound(
    kind: str, module: Any, x: torch.Tensor, gradient: torch.Tensor
) -> dict[str, torch.Tensor]:
    """How far results of a whole MLP move if blocks of FP8 have a rank's columns, name -> bound.

    The second product contracts along what ranks share, and so does the first one's input gradient:
    there, a rank's blocks end where its part does, and have scales of their own. From the MLP
    written out in float64. Results not named do not move, as long as a rank's part of a weight has
    the scale of the whole tile, which is required.
    """
    norm, bias, fc1, fc1_bias, fc2 = (
        getattr(module, name).detach().double()
        for name in ("layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias", "fc2_weight")
    )
    for parts in (_ranks_parts(fc1), _ranks_parts(fc2.t())):
        amax = parts.abs().amax((1, 2))
        assert (block_scale(amax, E4M3) == block_scale(amax.max(), E4M3)).all(), "weights move too"
    rows = x.detach().double().flatten(0, -2)
    centered = rows - rows.mean(-1, keepdim=True)
    inverse = 1 / torch.sqrt(centered.square().mean(-1, keepdim=True) + module.eps)
    normalized = centered * inverse
    hidden = ((normalized * norm + bias) @ fc1.t() + fc1_bias).requires_grad_()
    activation = ACTIVATIONS["swiglu" if kind.startswith("gated") else "gelu"]
    if activation.g is None:
        activated = activation.f(hidden)
    else:
        first, second = hidden.chunk(2, dim=-1)
        activated = activation.f(first) * activation.g(second)
    (grad_hidden,) = torch.autograd.grad(activated, hidden, gradient.double().flatten(0, -2) @ fc2)
    # Of the gradient of the norm's output, and from there on through the norm's backward.
    moved = rescaled_matmul_bound(grad_hidden, fc1, E4M3)
    scaled, sizes = moved * norm.abs(), normalized.abs()
    through_norm = scaled + scaled.mean(-1, keepdim=True)
    through_norm = through_norm + sizes * (scaled * sizes).mean(-1, keepdim=True)
    return {
        "output": rescaled_matmul_bound(activated.detach(), fc2.t(), E4M3).view_as(gradient),
        "inp": (inverse * through_norm).view_as(x),
        "layer_norm_weight": (moved * sizes).sum(0),
        "layer_norm_bias": moved.sum(0),
    }


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
