# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Strides carry no meaning: attention and layers give for any layout of an input, and of the
gradient that comes in, what they give for contiguous copies. Modules with projections do so bit for
bit; torch's attention operator, which gets a caller's strides, may sum in another order.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.tolerances import assert_within, gamma
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.attention.multi_head_attention import MultiheadAttention
from transformer_engine.pytorch.transformer import TransformerLayer

HIDDEN, HEADS, SIZE, LENGTH = 16, 4, 4, 7  # no sequence here is longer


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def reversed_axes(x: torch.Tensor) -> torch.Tensor:
    axes = tuple(reversed(range(x.dim())))
    return x.permute(axes).contiguous().permute(axes)


def sliced(x: torch.Tensor) -> torch.Tensor:
    """A window of a larger tensor, whose surroundings are NaN."""
    whole = torch.full([size + 3 for size in x.shape], torch.nan, dtype=x.dtype)
    window = whole[tuple(slice(1, size + 1) for size in x.shape)]
    window.copy_(x)
    return window


def channels_strided(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0]


def expanded(x: torch.Tensor) -> torch.Tensor:
    """One element of dimension 1 stands for all."""
    return x[:, :1].expand(x.shape) if x.shape[1] > 0 else x


def one_value(x: torch.Tensor) -> torch.Tensor:
    """Stride 0 everywhere, like the gradient of a sum."""
    return torch.tensor(0.5, dtype=x.dtype).expand(x.shape)


LAYOUTS = {
    function.__name__: function
    for function in (transposed, reversed_axes, sliced, channels_strided, expanded, one_value)
}
SHAPES = {"usual": (6, 3), "no batch": (6, 0), "one position": (1, 3), "one sequence": (6, 1)}


def make_core(qkv_format: str) -> tuple[torch.nn.Module, int, tuple[int, ...]]:
    module = DotProductAttention(HEADS, SIZE, qkv_format=qkv_format, attn_mask_type="causal")
    return module, 3, (HEADS, SIZE)


def make_attention(qkv_format: str) -> tuple[torch.nn.Module, int, tuple[int, ...]]:
    module = MultiheadAttention(
        *(HIDDEN, HEADS),
        attention_dropout=0.0,
        input_layernorm=True,
        qkv_format=qkv_format,
        device=torch.get_default_device(),
    )
    return module, 1, (HIDDEN,)


def make_cross_attention(qkv_format: str) -> tuple[torch.nn.Module, int, tuple[int, ...]]:
    module = MultiheadAttention(
        *(HIDDEN, HEADS),
        attention_dropout=0.0,
        attention_type="cross",
        attn_mask_type="no_mask",
        qkv_format=qkv_format,
        device=torch.get_default_device(),
    )
    return CrossCall(module), 2, (HIDDEN,)


def make_layer(qkv_format: str) -> tuple[torch.nn.Module, int, tuple[int, ...]]:
    module = TransformerLayer(
        *(HIDDEN, 24, HEADS),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        layer_type="decoder",
        attn_input_format=qkv_format,
        device=torch.get_default_device(),
    )
    return CrossCall(module), 2, (HIDDEN,)


class CrossCall(torch.nn.Module):
    """The second positional argument is what the encoder gave."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, encoder_output: torch.Tensor) -> torch.Tensor:
        return self.module(x, encoder_output=encoder_output)


KINDS = {
    "DotProductAttention": make_core,
    "MultiheadAttention": make_attention,
    "cross attention": make_cross_attention,
    "TransformerLayer": make_layer,
}


def run(
    module: torch.nn.Module, inputs: list[torch.Tensor], gradient: Any, region: Any
) -> list[Any]:
    """Output and all gradients; `gradient` makes the one that comes in from a contiguous one."""
    module = copy.deepcopy(module)  # also its scaling state
    leaves = [x.detach().requires_grad_() for x in inputs]
    with region():
        out = module(*leaves)
    out.backward(gradient(random_tensor(out.shape, seed=9, dtype=out.dtype)))
    return [out.detach(), *(leaf.grad for leaf in leaves), *(p.grad for p in module.parameters())]


def core_bound(inputs: list[torch.Tensor]) -> float:
    """Bound of what two orders of summation make of attention in FP32.

    A result passes through sums of SIZE terms (scores, and their gradient) and of LENGTH (softmax,
    product with the values), and about eight single roundings, in each of the two evaluations. No
    intermediate exceeds a product of two operands, inputs or gradient, summed over a head.
    """
    largest = max(float(x.abs().max()) for x in inputs if x.numel() > 0)
    chain = SIZE + 2 * LENGTH + 8
    return gamma(2 * chain, torch.float32) * SIZE * (1 + largest) ** 2


def check_core(results: list[Any], expected: list[Any], inputs: list[torch.Tensor]) -> None:
    gradient = random_tensor(expected[0].shape, seed=9)
    for got, want in zip(results, expected, strict=True):
        bound = core_bound([*inputs, gradient]) if got.numel() > 0 else 0.0
        assert_within(got, want, bound)


def check(kind: str, layout: str, shape: str, qkv_format: str, region: Any) -> None:
    torch.manual_seed(0)
    module, count, channels = KINDS[kind](qkv_format)
    length, batch = SHAPES[shape]
    leading = (length, batch) if qkv_format == "sbhd" else (batch, length)
    change = LAYOUTS[layout]
    inputs = [change(random_tensor((*leading, *channels), seed=i)) for i in range(count)]
    copies = [x.clone(memory_format=torch.contiguous_format) for x in inputs]
    plain = run(
        module, copies, lambda g: change(g).clone(memory_format=torch.contiguous_format), region
    )
    results = run(module, inputs, change, region)
    if kind == "DotProductAttention":
        check_core(results, plain, inputs)
    else:
        for got, expected in zip(results, plain, strict=True):
            assert torch.equal(got, expected) and torch.isfinite(got).all()
    for x, copied in zip(inputs, copies, strict=True):
        assert torch.equal(x, copied)


@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_layouts(kind, layout, shape, qkv_format):
    check(kind, layout, shape, qkv_format, contextlib.nullcontext)


@pytest.mark.parametrize("recipe", [Float8CurrentScaling, DelayedScaling])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", list(KINDS)[1:])
def test_layouts_in_fp8(kind, layout, recipe):
    recipe = recipe() if recipe is Float8CurrentScaling else recipe(amax_history_len=1)

    def region():
        te.quantization.FP8GlobalStateManager.reset()
        return te.autocast(recipe=recipe)

    check(kind, layout, "usual", "sbhd", region)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_packed_inputs(layout):
    module = DotProductAttention(HEADS, SIZE, qkv_format="thd", attn_mask_type="padding_causal")
    ends = torch.tensor([0, 2, 7], dtype=torch.int32)

    class Packed(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return module(*inputs, cu_seqlens_q=ends, cu_seqlens_kv=ends)

    change = LAYOUTS[layout]
    inputs = [change(random_tensor((7, HEADS, SIZE), seed=i)) for i in range(3)]
    copies = [x.clone(memory_format=torch.contiguous_format) for x in inputs]
    results = run(Packed(), inputs, change, contextlib.nullcontext)
    plain = run(Packed(), copies, lambda g: change(g).contiguous(), contextlib.nullcontext)
    check_core(results, plain, inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias_type", ["pre_scale_bias", "post_scale_bias"])
def test_layouts_of_bias_and_mask(bias_type, layout):
    module = DotProductAttention(HEADS, SIZE, attn_mask_type="arbitrary")
    x = random_tensor((6, 2, HEADS, SIZE))
    bias = LAYOUTS[layout](random_tensor((2, HEADS, 6, 6), seed=1))
    mask = LAYOUTS[layout](random_tensor((2, 1, 6, 6), seed=2)) > 0.7
    mask = mask.transpose(2, 3)
    results = []
    for change in (lambda t: t, lambda t: t.clone(memory_format=torch.contiguous_format)):
        leaf = change(bias).detach().requires_grad_()
        out = module(
            *(x, x, x, change(mask)), core_attention_bias_type=bias_type, core_attention_bias=leaf
        )
        out.sum().backward()
        results.append((out.detach(), leaf.grad))
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)
