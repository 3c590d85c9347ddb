# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a call goes: by differences between variants of it, and by counting.

Two variants differ in one part of the call, so that the difference of their times is what that part
costs. Both are timed in the same rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

from .cases import Case, Sizes, grad_mode

TESTS = str(Path(__file__).resolve().parents[2] / "tests" / "pytorch")


@dataclass(frozen=True, slots=True)
class Part:
    """What `case` does more than `without`; `times` as often."""

    title: str
    case: str
    without: str | None
    times: int = 1


PARTS = (
    Part("frame of the benchmark's own lambda", "frame", None),
    Part("call of a C function without arguments", "C call", "frame"),
    Part("torch.empty of the result, from Python", "torch.empty", "frame"),
    Part("whole forward without bias and node", "no bias", "frame"),
    Part("reading and checking one more parameter (bias)", "no_grad", "no bias"),
    Part("reading one more part of a split weight and bias", "split", "no_grad", 2),
    Part("parsing one keyword argument", "keyword", "no_grad"),
    Part("result of another shape than the product's (3-D input)", "3-D", "no_grad"),
    Part("autograd node, its edges and saved tensors", "grad", "no_grad"),
    Part("hook checks in nn.Module.__call__ instead of C", "module call", "no_grad"),
    Part("autocast region", "region", "frame"),
    Part("FP8: region, both quantizations and the scales", "FP8", "grad"),
)


def variants(sizes: Sizes) -> Iterator[Case]:
    """The cases that PARTS names."""
    hidden = sizes.hidden
    options = {"params_dtype": torch.bfloat16, "device": "cpu"}
    linear = te.Linear(hidden, hidden, **options)
    bare = te.Linear(hidden, hidden, bias=False, **options)
    # hidden is divisible by 4; three parts, so that two are added to the one of `linear`.
    rows = {"a_": hidden // 2, "b_": hidden // 4, "c_": hidden // 4}
    split = te.Linear(hidden, hidden, parameters_split=rows, **options)
    quantized = te.Linear(hidden, hidden, **options)
    recipe = DelayedScaling()
    x = torch.zeros(sizes.tokens, hidden, dtype=torch.bfloat16)
    x3 = x[:, None]
    module_call = nn.Module.__call__

    def region() -> None:
        with te.autocast(enabled=True, recipe=recipe):
            pass

    def in_region() -> Tensor:
        with te.autocast(enabled=True, recipe=recipe):
            return quantized(x)

    yield Case("frame", lambda: x, records=False)
    yield Case("C call", lambda: torch.is_grad_enabled(), records=False)
    shape, dtype = (sizes.tokens, hidden), torch.bfloat16
    yield Case("torch.empty", lambda: torch.empty(shape, dtype=dtype), records=False)
    yield Case("no bias", lambda: bare(x), records=False)
    yield Case("no_grad", lambda: linear(x), records=False)
    yield Case("split", lambda: split(x), records=False)
    yield Case("keyword", lambda: linear(x, is_first_microbatch=None), records=False)
    yield Case("3-D", lambda: linear(x3), records=False)
    yield Case("grad", lambda: linear(x))
    yield Case("module call", lambda: module_call(linear, x), records=False)
    yield Case("region", region)
    yield Case("FP8", in_region)


@dataclass(frozen=True, slots=True)
class Counts:
    """What one call of a module does."""

    python_calls: int
    allocations: int
    nodes: int


def count(cases: Sequence[Case]) -> dict[str, Counts]:
    """Counts of every forward case."""
    if TESTS not in sys.path:
        sys.path.append(TESTS)
    from helpers.counters import allocations, autograd_nodes, python_calls

    found = {}
    for case in cases:
        if case.calls != 1:
            continue
        with grad_mode(case):
            case.run()
            calls = sum(python_calls(case.run).values()) - 1  # the benchmark's lambda
            blocks = len(allocations(case.run))
            output = case.run()
        nodes = autograd_nodes([output]) if isinstance(output, Tensor) else []
        found[case.name] = Counts(calls, blocks, len(nodes))
    return found
