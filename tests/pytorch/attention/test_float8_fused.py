# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 attention by the fused native pass: the Python around it, with a stand-in for the pass."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.fake_float8_attention import FakeFloat8Attention
from helpers.float8_attention_cases import (
    CASES,
    DELAYED,
    RECIPES,
    assert_same,
    check_rule,
    make_call,
    states_of,
    step,
)
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.attention.dot_product_attention import float8
from transformer_engine.pytorch.attention.fp8 import cudnn


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The stand-in is there, and takes the device of these tests for one of cuDNN's."""

    def refusal(params: Any, options: Any, slots: Any) -> str | None:
        on_cuda = dataclasses.replace(params, device=torch.device("cuda", 0))
        return cudnn.fused_refusal(on_cuda, options, slots)

    monkeypatch.setattr(float8, "fused_refusal", refusal)
    monkeypatch.setattr(cudnn, "Float8Attention", FakeFloat8Attention)
    monkeypatch.setattr(FakeFloat8Attention, "calls", [])
    return FakeFloat8Attention.calls


TAKEN = {k: v for k, v in CASES.items() if v.softmax_type == "vanilla"}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("case", TAKEN.values(), ids=TAKEN)
def test_rule(case, recipe, calls):
    check_rule(case, recipe)
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_rule_in_the_other_layout_and_dtype(recipe, calls):
    check_rule(CASES["padded"], recipe, "sbhd", torch.float16)
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("kind", ["fused", "emulated"])
def test_delta_of_current_scaling_may_read_codes(kind, calls, monkeypatch):
    if kind == "emulated":
        monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    recipe = Float8CurrentScaling(fp8_dpa=True)
    results = []
    for text in ("1", "0"):
        monkeypatch.setenv("NVTE_DPA_FP8CS_O_in_F16", text)
        module, inputs = make_call(recipe)
        results.append(step(module, inputs, recipe))
    assert len(calls) == (4 if kind == "fused" else 0)
    (out, dq, dk, dv), (other_out, other_dq, other_dk, other_dv) = results
    assert torch.equal(out, other_out) and torch.equal(dv, other_dv)  # delta is no part of them
    for x, y in ((dq, other_dq), (dk, other_dk)):
        assert 0 < (x - y).norm() < 0.1 * x.norm()  # codes of O are off by up to a 16th


@pytest.mark.parametrize("recipe", [RECIPES["delayed"], RECIPES["current"]])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_repeats_every_bit_and_observes_once(recipe, use_reentrant, calls):
    module, inputs = make_call(recipe)
    twin = copy.deepcopy(module)

    def recomputed(*args: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(twin, *args, use_reentrant=use_reentrant)

    for _ in range(3):
        plain = step(module, inputs, recipe)
        assert_same(step(twin, inputs, recipe, recomputed), plain)
        assert_same(states_of(twin), states_of(module))
    assert calls.count("forward") == 9 and calls.count("backward") == 6


def watch(tensor: torch.Tensor, seen: list[torch.Tensor]) -> None:
    tensor.register_hook(seen.append)


@pytest.mark.parametrize("recipe_class", [DelayedScaling, Float8CurrentScaling])
def test_every_boundary_of_fp8_mha(recipe_class, calls):
    module = te.MultiheadAttention(
        64, 4, attention_dropout=0.0, params_dtype=torch.bfloat16, fuse_qkv_params=True
    )
    seen: list[torch.Tensor] = []
    module.qkv.register_forward_hook(lambda _m, _a, out: watch(out, seen))
    x = torch.randn(5, 2, 64, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=recipe_class(fp8_mha=True)):
        out = module(x)
    out.sum().backward()
    assert isinstance(seen[0], te.Float8Tensor) and x.grad.isfinite().all()
    assert calls == ["forward", "backward"]


def test_what_it_does_not_take_is_emulated(calls, monkeypatch):
    module, inputs = make_call(DELAYED, attention_dropout=0.1)
    step(module, inputs, DELAYED)
    module, inputs = make_call(DELAYED)
    step(module, inputs, DELAYED, bf16_backward=True)
    assert calls == []
    monkeypatch.setattr(FakeFloat8Attention, "declines", True)
    twin = copy.deepcopy(module)
    declined = step(module, inputs, DELAYED)
    assert calls == ["forward"]
    twin._switches = dataclasses.replace(twin._switches, fused=False)
    assert_same(step(twin, inputs, DELAYED), declined)
    assert calls == ["forward"]


def test_a_forward_alone_keeps_nothing_for_a_backward(calls):
    module, inputs = make_call(DELAYED)
    with torch.no_grad(), te.autocast(recipe=DELAYED):
        out = module(*inputs)
    assert not out.requires_grad and calls == ["forward"]


def test_reasons_are_those_of_fp8_inside_its_regions(calls, monkeypatch):
    module, inputs = make_call(DELAYED)
    outside = module.explain_backends(*inputs)
    with te.autocast(recipe=DELAYED):
        assert module.explain_backends(*inputs) == {
            "FusedAttention": None,
            "UnfusedDotProductAttention": None,
        }
        reasons = module.explain_backends(*inputs, bf16_backward=True)
        assert "its backward is in FP8" in reasons["FusedAttention"]
    with te.autocast(recipe=DelayedScaling()):
        assert module.explain_backends(*inputs) == outside
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", "0")
    off, _ = make_call(DELAYED)
    with te.autocast(recipe=DELAYED):
        reasons = off.explain_backends(*inputs)
    assert all("switched off" in reason for reason in reasons.values()) and len(reasons) == 2
