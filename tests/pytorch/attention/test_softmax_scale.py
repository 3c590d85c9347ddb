# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention with a scale that is 0, negative, or 0 in FP32: torch's causal flag gives NaN there."""

from __future__ import annotations

import pytest
import torch

from helpers.attention import (
    AttentionCase,
    gradient_bound,
    output_bound,
    reference_attention,
)
from helpers.attention_module import Layout, make_inputs
from helpers.generators import random_tensor
from helpers.tolerances import assert_within
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.attention.backends.sdpa import causal_flag_holds, sdpa

SCALES = (0.0, -0.5, 1e-30, -1e-30, 1e-46)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("window", [None, (2, 0)])
@pytest.mark.parametrize(
    ("mask_type", "qkv_format"),
    [
        ("no_mask", "sbhd"),
        ("causal", "sbhd"),
        ("causal", "bshd"),
        ("padding_causal", "bshd"),
        ("padding_causal", "thd"),
    ],
)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_attention_in_float64(scale, mask_type, qkv_format, window, dtype):
    """A negative scale is the positive one of -Q: so the reference and its bounds have it."""
    if mask_type == "no_mask" and window is not None:
        window = (2, 1)
    case = AttentionCase(mask_type, [6, 4], [6, 4], 6, 6, scale=abs(scale), window=window)
    layout = Layout(case, qkv_format)
    sign = -1.0 if scale < 0 else 1.0
    leaves = [x.requires_grad_() for x in make_inputs(case, dtype, padding=0.0)]
    clean = [x.double() for x in make_inputs(case, dtype, padding=0.0)]
    clean[0] = clean[0] * sign
    clean = [x.requires_grad_() for x in clean]
    module = DotProductAttention(
        case.heads,
        (case.d_qk, case.d_v),
        num_gqa_groups=case.groups,
        qkv_format=qkv_format,
        attn_mask_type=mask_type,
        window_size=window,
        softmax_scale=scale,
    )
    lengths = (case.lengths_q, case.lengths_kv, case.lengths_kv)
    packed = [layout.pack(x, n) for x, n in zip(leaves, lengths, strict=True)]
    out = layout.unpack(module(*packed, **layout.arguments("lengths")))
    result = reference_attention(case, *clean)
    half = dtype if dtype.itemsize == 2 else None
    bound = output_bound(case, result, *clean, dtype=dtype, probability_dtype=half)
    assert_within(out, result.out, bound, "out")
    grad_out = random_tensor(tuple(out.shape), dtype=dtype, seed=4)
    for b, n in enumerate(case.lengths_q if case.is_padded() else ()):
        grad_out[b, n:] = 0
    out.backward(grad_out)
    result.out.backward(grad_out.double())
    bounds = gradient_bound(case, result, tuple(clean), grad_out, dtype)
    for name, leaf, expected, bound in zip("qkv", leaves, clean, bounds, strict=False):
        gradient = expected.grad * (sign if name == "q" else 1.0)
        assert_within(leaf.grad, gradient, bound, f"d{name}")


def test_why_the_causal_flag_is_left_alone():
    """Fails where torch computes these scales: `causal_flag_holds` can then go."""
    q, k, v = (random_tensor((1, 1, 3, 4), seed=seed) for seed in range(3))
    for scale in SCALES:
        is_finite = bool(sdpa(q, k, v, is_causal=True, scale=scale).isfinite().all())
        assert is_finite or not causal_flag_holds(scale)
    assert sdpa(q, k, v, is_causal=True, scale=0.0).isnan().any()
