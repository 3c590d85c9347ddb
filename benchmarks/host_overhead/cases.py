# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The calls that are timed.

"fwd" is one call of one module with gradients recorded, "no_grad" one without, "chain" a forward
and a backward through eight modules in a row, per module: the fixed cost of one `backward()` would
dilute every ratio. Gradients are dropped between calls, outside the timed part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transformer_engine.pytorch as te
from benchmarks.bench_transformer import PlainLayer, Shape
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)

CHAIN = 8
RECIPES: dict[str, Recipe] = {
    "delayed": DelayedScaling(),
    "current": Float8CurrentScaling(),
    "block": Float8BlockScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(),
}
Block = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """tokens x hidden inputs, MLPs of ffn columns, attention of `heads` heads."""

    tokens: int
    hidden: int
    ffn: int
    heads: int


# Allocate-only kernels: any size will do. Real kernels: below 4,097 multiply-adds, where torch's
# BF16 product does not pay oneDNN's set-up of some 20 us, which would hide what is measured.
SIZES = {"allocate-only": Sizes(16, 64, 256, 4), "real": Sizes(4, 16, 32, 2)}


@dataclass(frozen=True, slots=True)
class Case:
    """One call to time.

    Attributes
    ----------
    calls : int
        How many module calls `run` stands for.
    records : bool
        Whether gradients are recorded.
    leaves : list of Tensor
        Their gradients are dropped after every run.
    """

    name: str
    run: Callable[[], object]
    calls: int = 1
    records: bool = True
    leaves: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Maker:
    """How to build one of the things compared: a fresh block and its parameters' owners."""

    name: str
    make: Callable[[], tuple[Block, list[nn.Module]]]
    passes: tuple[str, ...]
    recipe: Recipe | None = None


def _plain_makers(sizes: Sizes, dtype: torch.dtype) -> list[Maker]:
    hidden, ffn = sizes.hidden, sizes.ffn
    shape = Shape(sizes.tokens, 1, hidden, ffn, sizes.heads)

    def linear() -> tuple[Block, list[nn.Module]]:
        module = nn.Linear(hidden, hidden, dtype=dtype)
        return module, [module]

    def norm() -> tuple[Block, list[nn.Module]]:
        module = nn.LayerNorm(hidden, dtype=dtype)
        return module, [module]

    def norm_linear() -> tuple[Block, list[nn.Module]]:
        norm, linear = nn.LayerNorm(hidden, dtype=dtype), nn.Linear(hidden, hidden, dtype=dtype)
        return lambda x: linear(norm(x)), [norm, linear]

    def stack() -> tuple[Block, list[nn.Module]]:
        norm = nn.LayerNorm(hidden, dtype=dtype)
        fc1, fc2 = nn.Linear(hidden, ffn, dtype=dtype), nn.Linear(ffn, hidden, dtype=dtype)
        return lambda x: fc2(F.gelu(fc1(norm(x)), approximate="tanh")), [norm, fc1, fc2]

    def block() -> tuple[Block, list[nn.Module]]:
        module = PlainLayer(shape, dtype)
        return module, [module]

    return [
        Maker("nn.Linear", linear, ("fwd", "no_grad", "chain")),
        Maker("nn.LayerNorm", norm, ("fwd",)),
        Maker("nn norm+linear", norm_linear, ("fwd", "chain")),
        Maker("nn stack", stack, ("fwd", "chain")),
        Maker("block", block, ("fwd", "chain")),
    ]


def _our_makers(sizes: Sizes, dtype: torch.dtype) -> list[Maker]:
    hidden, ffn = sizes.hidden, sizes.ffn
    options = {"params_dtype": dtype, "device": "cpu"}

    def alone(build: Callable[[], nn.Module]) -> Callable[[], tuple[Block, list[nn.Module]]]:
        def make() -> tuple[Block, list[nn.Module]]:
            module = build()
            return module, [module]

        return make

    linear = alone(lambda: te.Linear(hidden, hidden, **options))
    mlp = alone(lambda: te.LayerNormMLP(hidden, ffn, **options))
    layer = alone(
        lambda: te.TransformerLayer(
            *(hidden, ffn, sizes.heads),
            hidden_dropout=0.0,
            attention_dropout=0.0,
            fuse_qkv_params=True,
            **options,
        )
    )
    norms = {"dtype": dtype, "device": "cpu"}
    makers = [
        Maker("Linear", linear, ("fwd", "no_grad", "chain")),
        Maker("LayerNorm", alone(lambda: te.LayerNorm(hidden, **norms)), ("fwd",)),
        Maker("RMSNorm", alone(lambda: te.RMSNorm(hidden, **norms)), ("fwd",)),
        Maker(
            "LayerNormLinear",
            alone(lambda: te.LayerNormLinear(hidden, hidden, **options)),
            ("fwd", "chain"),
        ),
        Maker("LayerNormMLP", mlp, ("fwd", "chain")),
        Maker("TransformerLayer", layer, ("fwd", "chain")),
    ]
    for name, recipe in RECIPES.items():
        makers.append(Maker(f"Linear {name}", linear, ("fwd", "chain"), recipe))
        makers.append(Maker(f"LayerNormMLP {name}", mlp, ("fwd", "chain"), recipe))
    return makers


def _forward(block: Block, x: Tensor, recipe: Recipe | None) -> Callable[[], object]:
    if recipe is None:
        return lambda: block(x)

    def run() -> Tensor:
        with te.autocast(enabled=True, recipe=recipe):
            return block(x)

    return run


def _chain(blocks: list[Block], x: Tensor, recipe: Recipe | None) -> Callable[[], object]:
    grad = torch.ones_like(x)

    def step() -> None:
        y = x
        for block in blocks:
            y = block(y)
        y.backward(grad)

    def step_in_region() -> None:
        y = x
        with te.autocast(enabled=True, recipe=recipe):
            for block in blocks:
                y = block(y)
        y.backward(grad)

    return step if recipe is None else step_in_region


def _region(recipe: Recipe) -> Callable[[], object]:
    def run() -> None:
        with te.autocast(enabled=True, recipe=recipe):
            pass

    return run


def cases(sizes: Sizes, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    """All of them; each has modules of its own."""
    shape = (sizes.tokens, sizes.hidden)
    for maker in (*_plain_makers(sizes, dtype), *_our_makers(sizes, dtype)):
        # The attention of a layer takes [s, b, hidden].
        has_batch = maker.name in ("block", "TransformerLayer")
        for kind in maker.passes:
            count = CHAIN if kind == "chain" else 1
            made = [maker.make() for _ in range(count)]
            x = torch.zeros((shape[0], 1, shape[1]) if has_batch else shape, dtype=dtype)
            x.requires_grad_()
            blocks = [block for block, _ in made]
            owners = [owner for _, owners in made for owner in owners]
            run = (
                _chain(blocks, x, maker.recipe)
                if kind == "chain"
                else _forward(blocks[0], x, maker.recipe)
            )
            leaves = [x, *(p for owner in owners for p in owner.parameters())]
            yield Case(f"{maker.name} {kind}", run, count, kind != "no_grad", leaves)
    for name in ("delayed", "current"):
        yield Case(f"region {name}", _region(RECIPES[name]))


def grad_mode(case: Case) -> torch.no_grad | nullcontext[None]:
    """The mode that a case runs in."""
    return nullcontext() if case.records else torch.no_grad()
