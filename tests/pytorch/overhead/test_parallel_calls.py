# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exchanges between tensor-parallel ranks enter Python no more than a layer of one rank does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

import transformer_engine.pytorch as te
from helpers.counters import python_calls
from helpers.overhead import HIDDEN, LIMITS, make_subject

RANKS = 2


@pytest.fixture
def group() -> Iterator[torch.distributed.ProcessGroup]:
    """Claims a second rank; nothing is sent."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def linear(mode: str) -> Callable[..., torch.nn.Module]:
    inputs = HIDDEN * (RANKS if mode == "row" else 1)
    return lambda **options: te.Linear(inputs, HIDDEN, parallel_mode=mode, **options)


MODULES: dict[str, tuple[str, Callable[..., torch.nn.Module]]] = {
    "column": ("Linear", linear("column")),
    "row": ("Linear", linear("row")),
    "LayerNormLinear": (
        "LayerNormLinear",
        lambda **options: te.LayerNormLinear(HIDDEN, HIDDEN, parallel_mode="column", **options),
    ),
    "LayerNormMLP": (
        "LayerNormMLP",
        lambda **options: te.LayerNormMLP(HIDDEN, HIDDEN, set_parallel_mode=True, **options),
    ),
}


@pytest.mark.parametrize("recipe", ["BF16", "current", "mxfp8"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_parallel_layers_stay_within_the_calls_of_one_rank(name, sequence, recipe, group):
    kind, make = MODULES[name]
    module = make(
        tp_group=group, sequence_parallel=sequence, params_dtype=torch.bfloat16, device="cpu"
    )
    subject = make_subject(kind, recipe, module=module)
    with subject.region():
        forward = python_calls(subject.forward)
        both = python_calls(subject.forward_backward)
    assert sum(forward.values()) <= LIMITS[kind].calls, forward
    assert sum(both.values()) <= LIMITS[kind].calls_with_backward, both
