# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, recipes and steps that tests of FP8 attention share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Format

from .attention import AttentionCase
from .attention_module import Layout, make_inputs, make_module
from .float8_attention import Formats, assert_bounded, reference_float8_attention
from .generators import random_tensor
from .tolerances import assert_within

QKV, O, S = 2, 3, 8  # noqa: E741 - the slots of the forward
DQKV, DO, DP = 0, 3, 5  # and of the backward
# Scales as no tensor of these tests would give: a slot that uses another one's is seen.
FORWARD_SCALES, BACKWARD_SCALES = [41.0, 23.0, 190.0], [600.0, 450.0, 777.0]

CASES = {
    "full": AttentionCase("no_mask", [6, 6], [6, 6], 6, 6),
    "causal": AttentionCase("causal", [6, 6], [6, 6], 6, 6),
    "more keys": AttentionCase("causal_bottom_right", [5, 5], [8, 8], 5, 8, groups=1),
    "padded": AttentionCase("padding_causal", [6, 4], [6, 4], 6, 6),
    "no key for some": AttentionCase("padding_causal", [7, 2], [3, 4], 7, 4),
    "window": AttentionCase("no_mask", [6, 6], [6, 6], 6, 6, window=(2, 1), groups=4),
    "off by one": AttentionCase("causal", [6, 6], [6, 6], 6, 6, softmax_type="off-by-one"),
    "one token": AttentionCase("no_mask", [1], [1], 1, 1, heads=1, groups=1),
}


def with_bias(kind: str) -> AttentionCase:
    case = AttentionCase("causal", [6, 6], [6, 6], 6, 6, bias_type=kind)
    if kind != "alibi":
        case.bias = random_tensor((2, 4, 6, 6), seed=11)
    return case


def with_sink() -> AttentionCase:
    case = AttentionCase("causal", [6, 6], [6, 6], 6, 6, softmax_type="learnable")
    case.offset = random_tensor((4,), seed=12)
    return case


def with_mask() -> AttentionCase:
    case = AttentionCase("arbitrary", [6, 6], [6, 6], 6, 6)
    case.arbitrary = random_tensor((2, 4, 6, 6), seed=7) > 0.3
    case.arbitrary[0, 1, 2] = True  # a query without any key
    return case


def delayed_state(module: Any, key: str) -> Any:
    return module.fp8_meta[key].delayed


def set_scales(module: Any, recipe: Any) -> None:
    """Give the module's slots the scales above, of which current scaling has two."""
    with te.autocast(recipe=recipe):
        module.init_fp8_metadata()
    for key, slots, scales in (
        ("scaling_fwd", (QKV, O, S), FORWARD_SCALES),
        ("scaling_bwd", (DQKV, DO, DP), BACKWARD_SCALES),
    ):
        state = delayed_state(module, key)
        for slot, scale in zip(slots, scales, strict=True):
            state.scale[slot] = scale


def formats_of(recipe: Any) -> Formats:
    if isinstance(recipe, Float8CurrentScaling):
        return Formats.current(FORWARD_SCALES[2], BACKWARD_SCALES[2])
    is_hybrid = recipe.fp8_format == Format.HYBRID
    return Formats.delayed(FORWARD_SCALES, BACKWARD_SCALES, is_hybrid)


def check_rule(
    case: AttentionCase,
    recipe: Any,
    qkv_format: str = "bshd",
    dtype: torch.dtype = torch.bfloat16,
    gap: int = 0,
    dropout: float = 0.0,
) -> None:
    """Output, gradients and amaxes of one call against the reference."""
    layout = Layout(case, qkv_format, gap)
    module = make_module(case, qkv_format, attention_dropout=dropout)
    set_scales(module, recipe)
    inputs = make_inputs(case, dtype, padding=0.0)
    lengths = (case.lengths_q, case.lengths_kv, case.lengths_kv)
    leaves = [x.clone().requires_grad_() for x in inputs]
    packed = [layout.pack(x, n) for x, n in zip(leaves, lengths, strict=True)]
    arguments = layout.arguments()
    bias = arguments.get("core_attention_bias")
    if bias is not None:
        arguments["core_attention_bias"] = bias = bias.clone().requires_grad_()
    grad = random_tensor((*inputs[0].shape[:3], case.d_v), dtype=dtype, seed=4)
    for b, length in enumerate(case.lengths_q if case.is_padded() else []):
        grad[b, length:] = 0  # what comes back for padding is not read
    torch.manual_seed(5)
    with te.autocast(recipe=recipe):
        out = module(*packed, **arguments)
    kept = None
    if dropout:
        torch.manual_seed(5)
        kept = torch.rand(len(case.lengths_q), case.heads, case.s_q, case.s_kv) >= dropout
    layout.unpack(out).backward(grad)
    expected = reference_float8_attention(
        case, inputs, grad, formats_of(recipe), dtype=dtype, kept=kept, dropout=dropout
    )
    assert out.dtype == dtype
    assert_bounded(layout.unpack(out), expected.out, "out")
    for name, leaf in zip(("q", "k", "v"), leaves, strict=True):
        assert leaf.grad is not None and leaf.grad.dtype == dtype
        assert_bounded(leaf.grad, expected.gradients[name], f"d{name}")
    if bias is not None:
        factor = case.scale if case.bias_type == "pre_scale_bias" else 1.0
        want = expected.gradients["bias"]
        # One rounding more where the bias is scaled.
        error = factor * want.error + 2.0**-22 * factor * want.value.abs()
        assert_within(bias.grad, factor * want.value, error, "dbias")
    if case.softmax_type == "learnable":
        assert module.softmax_offset is not None and module.softmax_offset.grad is not None
        assert_bounded(module.softmax_offset.grad, expected.gradients["sink"], "dsink")
    check_amaxes(module, recipe, inputs, grad, expected)


def check_amaxes(module: Any, recipe: Any, inputs: Any, grad: Any, expected: Any) -> None:
    """What the slots observed, as the history has it."""
    forward = delayed_state(module, "scaling_fwd").amax_history[-1]
    backward = delayed_state(module, "scaling_bwd").amax_history[0]  # that step has not ended
    if isinstance(recipe, DelayedScaling):
        assert forward[QKV] == max(float(x.abs().max()) for x in inputs)
        assert_bounded(forward[O], expected.amax["o"], "amax of O")
        # The end of the step belongs to the module itself, so its history has moved on.
        backward = delayed_state(module, "scaling_bwd").amax_history[-1]
        assert backward[DO] == float(grad.abs().max())
        assert_bounded(backward[DQKV], expected.amax["dqkv"], "amax of dQKV")
        assert_bounded(forward[S], expected.amax["s"], "amax of S")
        assert_bounded(backward[DP], expected.amax["dp"], "amax of dP")
        used = torch.tensor([QKV, O, S])
        assert (forward.index_fill(0, used, 0) == 0).all()


DELAYED = DelayedScaling(fp8_dpa=True, amax_history_len=2)
CURRENT = Float8CurrentScaling(fp8_dpa=True)
RECIPES = {
    "delayed": DELAYED,
    "e4m3": DelayedScaling(fp8_dpa=True, amax_history_len=2, fp8_format=Format.E4M3),
    "current": CURRENT,
}


def make_call(
    recipe: Any, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> tuple[Any, list[torch.Tensor]]:
    """A module and inputs that require gradients."""
    module = te.DotProductAttention(4, 16, num_gqa_groups=2, **options)
    sizes = ((6, 2, 4, 16), (6, 2, 2, 16), (6, 2, 2, 16))
    inputs = [random_tensor(size, dtype=dtype, seed=i) for i, size in enumerate(sizes)]
    return module, [x.requires_grad_() for x in inputs]


def step(
    module: Any,
    inputs: list[torch.Tensor],
    recipe: Any,
    call: Callable[..., Any] | None = None,
    **arguments: Any,
) -> list[torch.Tensor]:
    """Output and input gradients of one training step."""
    for x in inputs:
        x.grad = None
    with te.autocast(recipe=recipe):
        out = (call or module)(*inputs, **arguments)
    out.backward(random_tensor(out.shape, dtype=out.dtype, seed=9))
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


def assert_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def states_of(module: Any) -> list[torch.Tensor]:
    return [
        x
        for key in ("scaling_fwd", "scaling_bwd")
        for x in (delayed_state(module, key).scale, delayed_state(module, key).amax_history)
    ]
