# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Thousands of calls leave nothing behind: no objects, no Python memory, no native memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.overhead import HIDDEN, MODULES, RECIPES, Subject, make_subject

# A leak grows in every window; a cache that fills or a heap that rearranges itself does not.
WINDOWS = 6
CALLS, SLOW_CALLS = 50, 1_700
# Less than one object, one block of Python's allocator and 16 bytes of malloc's per ten calls.
SHARE = 10
BLOCK_BYTES = 16

# A layer runs these, each by a call of its own: what they leave behind, it leaves behind.
PARTS = ("LayerNormLinear", "LayerNormMLP", "DotProductAttention", "MultiheadAttention")
# These have no quantized products; recipes reach them by their region alone.
PLAIN = ("LayerNorm", "RMSNorm")
CASES = [
    (kind, recipe)
    for kind in MODULES
    for recipe in RECIPES
    if kind not in PARTS and (kind not in PLAIN or recipe in ("BF16", "delayed"))
]

recipes = pytest.mark.parametrize("recipe", RECIPES)


class MallInfo2(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and later."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )


def mallinfo2() -> Callable[[], MallInfo2] | None:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = MallInfo2
    return function


def native_bytes() -> int:
    """Bytes handed out by malloc, small and large blocks."""
    function = mallinfo2()
    assert function is not None
    info = function()
    return info.uordblks + info.hblkhd


@dataclass(frozen=True)
class Growth:
    """More after the calls than before."""

    objects: int
    python_blocks: int
    native_bytes: int

    def within(self, calls: int) -> bool:
        return (
            self.objects <= calls // SHARE
            and self.python_blocks <= calls // SHARE
            and self.native_bytes <= calls // SHARE * BLOCK_BYTES
        )


def step(subject: Subject) -> None:
    with subject.region():
        subject.forward_backward()
    subject.drop_gradients()


def repeat(subject: Subject, calls: int) -> None:
    for _ in range(calls):
        step(subject)
    gc.collect()


def measure() -> tuple[int, int, int]:
    """Objects that the collector knows, blocks of Python's allocator, bytes of malloc."""
    return len(gc.get_objects()), sys.getallocatedblocks(), native_bytes()


def least_growth(subject: Subject, calls: int) -> list[int]:
    """The least that each measure grows by in a window of `calls`."""
    least = list(measure())  # more than any growth
    for _ in range(WINDOWS):
        before = measure()
        repeat(subject, calls)
        # Nothing new stays alive between two measurements but what the calls left.
        least[:] = [
            min(known, now - then)
            for known, now, then in zip(least, measure(), before, strict=True)
        ]
    return least


def growth(subject: Subject, calls: int) -> Growth:
    gc.collect()
    gc.freeze()  # collections then look at what is new only
    try:
        return growth_of_unfrozen(subject, calls)
    finally:
        gc.unfreeze()


def growth_of_unfrozen(subject: Subject, calls: int) -> Growth:
    repeat(subject, 50)  # free lists and caches fill
    objects, blocks, native = least_growth(subject, calls)
    return Growth(objects, blocks, native)


pytestmark = pytest.mark.skipif(mallinfo2() is None, reason="this libc has no mallinfo2")


@pytest.mark.parametrize(("kind", "recipe"), CASES)
def test_nothing_grows(kind, recipe):
    found = growth(make_subject(kind, recipe), CALLS)
    assert found.within(CALLS), found


@pytest.mark.parametrize("recipe", ["BF16", "delayed"])
def test_a_layer_calls_the_parts_it_stands_for(recipe):
    subject = make_subject("TransformerLayer", recipe)
    called = set()
    for module in subject.module.modules():
        module.register_forward_hook(lambda module, *_: called.add(type(module).__name__))
    step(subject)
    assert {"Linear", *PARTS} <= called


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Linear", "TransformerLayer"])
@recipes
def test_nothing_grows_over_ten_thousand_calls(kind, recipe):
    found = growth(make_subject(kind, recipe), SLOW_CALLS)
    assert found.within(SLOW_CALLS), found


@pytest.mark.parametrize("recipe", ["delayed", "current"])
def test_caches_keep_their_size_when_recipes_are_made_anew(recipe):
    from transformer_engine.pytorch import recipe_state

    subject = make_subject("Linear", recipe)
    before = len(recipe_state._native_recipes)
    for _ in range(CALLS):
        with te.autocast(enabled=True, recipe=RECIPES[recipe]()):
            subject.forward_backward()
        subject.drop_gradients()
    assert len(recipe_state._native_recipes) == before


def test_attention_plans_keep_within_their_number():
    from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention

    module = make_subject("DotProductAttention").module
    for length in range(1, 300):
        q = torch.zeros(length, 1, 2, 16, dtype=torch.bfloat16)
        module(q, q, q)
    assert len(module._plans) <= dot_product_attention.MAX_PLANS < 299


class Leaking(te.Linear):
    """Keeps something of each call."""

    def __init__(self, keep: Callable[[torch.Tensor], object]) -> None:
        super().__init__(HIDDEN, HIDDEN, params_dtype=torch.bfloat16, device="cpu")
        self.keep = keep

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        output = super().forward(inp)
        self.keep(output)
        return output


def leaking(keep: Callable[[torch.Tensor], object]) -> Growth:
    return growth(make_subject("Linear", module=Leaking(keep)), CALLS)


@pytest.mark.parametrize("recipe", ["BF16", "mxfp8"])
def test_a_leak_in_a_part_of_a_layer_is_noticed(recipe):
    kept: list[object] = []
    subject = make_subject("TransformerLayer", recipe)
    subject.module.self_attention.proj.register_forward_hook(lambda *_: kept.append([]))
    found = growth(subject, CALLS)
    assert found.objects >= CALLS // 2 and not found.within(CALLS)


def test_a_leaked_object_is_noticed():
    kept: list[object] = []
    found = leaking(lambda output: kept.append([]))
    assert found.objects >= CALLS // 2 and not found.within(CALLS)


def test_kept_numbers_are_noticed():
    kept: list[object] = []
    found = leaking(lambda output: kept.append(float(len(kept))))  # the collector knows none
    assert found.python_blocks > CALLS // SHARE and not found.within(CALLS)


def test_a_native_leak_is_noticed():
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    blocks: list[int] = []

    def keep(output: torch.Tensor) -> None:
        address = malloc(24)
        if len(blocks) < 100_000:
            blocks.append(address)

    found = leaking(keep)
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    for address in blocks:
        free(address)
    assert found.native_bytes >= CALLS * BLOCK_BYTES and not found.within(CALLS)


def test_a_kept_tensor_is_noticed():
    kept: list[torch.Tensor] = []
    found = leaking(lambda output: kept.append(output.detach()))
    assert found.native_bytes > CALLS * BLOCK_BYTES and not found.within(CALLS)
