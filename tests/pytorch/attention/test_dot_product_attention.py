# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention against pair-by-pair float64 attention, for every combination."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from helpers.attention import (
    AttentionCase,
    gradient_bound,
    output_bound,
    reference_attention,
)
from helpers.generators import random_tensor
from helpers.tolerances import assert_within
from transformer_engine.pytorch.attention import DotProductAttention

MASK_TYPES = (
    "no_mask",
    "causal",
    "causal_bottom_right",
    "padding",
    "padding_causal",
    "padding_causal_bottom_right",
    "arbitrary",
)
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")
SOFTMAX_TYPES = ("vanilla", "off-by-one", "learnable")
TORCH_ONLY = {"NVTE_UNFUSED_ATTN": "0"}
UNFUSED_ONLY = {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}
BACKENDS = {"torch": TORCH_ONLY, "unfused": UNFUSED_ONLY}


def make_case(mask_type: str, shape: str = "self", **options: Any) -> AttentionCase:
    """Two sequences of unequal length; `shape` says how many keys there are."""
    s_q, s_kv, lengths_q, lengths_kv = {
        "self": (6, 6, [6, 4], [6, 4]),
        "longer keys": (5, 8, [3, 5], [8, 2]),
        "longer queries": (7, 4, [7, 2], [3, 4]),
    }[shape]
    case = AttentionCase(mask_type, lengths_q, lengths_kv, s_q, s_kv, **options)
    if mask_type == "arbitrary":
        case.arbitrary = random_tensor((2, case.heads, s_q, s_kv), seed=7) > 0.3
        case.arbitrary[0, 1, 2] = True  # a query without any key
        case.arbitrary[1, :, :, 0] = True  # a key without any query
    if case.bias_type in ("pre_scale_bias", "post_scale_bias") and case.bias is None:
        case.bias = random_tensor((1, case.heads, s_q, s_kv), dtype=torch.float64, seed=8)
    if case.softmax_type == "off-by-one":
        case.offset = torch.zeros(case.heads)
    elif case.softmax_type == "learnable":
        case.offset = random_tensor((case.heads,), seed=9)
    return case


def make_inputs(
    case: AttentionCase, dtype: torch.dtype, padding: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v in [b, s, heads, d]; what stands in padding can be chosen."""
    batch = len(case.lengths_q)
    q = random_tensor((batch, case.s_q, case.heads, case.d_qk), dtype=dtype, seed=1)
    k = random_tensor((batch, case.s_kv, case.groups, case.d_qk), dtype=dtype, seed=2)
    v = random_tensor((batch, case.s_kv, case.groups, case.d_v), dtype=dtype, seed=3)
    if padding is not None and case.is_padded():
        for b in range(batch):
            q[b, case.lengths_q[b] :] = padding
            k[b, case.lengths_kv[b] :] = padding
            v[b, case.lengths_kv[b] :] = padding
    return q, k, v


def cumulative(lengths: list[int], gap: int = 0) -> torch.Tensor:
    ends = torch.tensor([0, *(length + gap for length in lengths)]).cumsum(0)
    return ends.to(torch.int32)


class Layout:
    """From [b, s, heads, d] to a format and back."""

    def __init__(self, case: AttentionCase, qkv_format: str, gap: int = 0) -> None:
        self.case, self.format, self.gap = case, qkv_format, gap

    def pack(self, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        if self.format == "bshd":
            return x
        if self.format == "sbhd":
            return x.transpose(0, 1)
        slots = [
            torch.cat((x[b, :n], x.new_full((self.gap, *x.shape[2:]), torch.nan)))
            for b, n in enumerate(lengths)
        ]
        return torch.cat(slots)

    def unpack(self, out: torch.Tensor) -> torch.Tensor:
        """[.., h * d_v] to [b, s_q, h, d_v], zeros outside the sequences."""
        case = self.case
        out = out.unflatten(-1, (case.heads, case.d_v))
        if self.format == "bshd":
            return out
        if self.format == "sbhd":
            return out.transpose(0, 1)
        full = out.new_zeros((len(case.lengths_q), case.s_q, case.heads, case.d_v))
        starts = cumulative(case.lengths_q, self.gap).tolist()
        for b, n in enumerate(case.lengths_q):
            full[b, :n] = out[starts[b] : starts[b] + n]
        return full

    def arguments(self, mask_as: str = "lengths") -> dict[str, Any]:
        case = self.case
        arguments: dict[str, Any] = {}
        if self.format == "thd" or (case.is_padded() and mask_as == "lengths"):
            arguments["cu_seqlens_q"] = cumulative(case.lengths_q)
            arguments["cu_seqlens_kv"] = cumulative(case.lengths_kv)
        elif case.is_padded():
            masks = []
            for lengths, size in ((case.lengths_q, case.s_q), (case.lengths_kv, case.s_kv)):
                row = torch.arange(size) >= torch.tensor(lengths)[:, None]
                masks.append(row[:, None, None, :])
            same = case.s_q == case.s_kv and case.lengths_q == case.lengths_kv
            arguments["attention_mask"] = masks[0] if same else tuple(masks)
        if self.gap:
            arguments["cu_seqlens_q_padded"] = cumulative(case.lengths_q, self.gap)
            arguments["cu_seqlens_kv_padded"] = cumulative(case.lengths_kv, self.gap)
        if self.format == "thd":
            arguments["max_seqlen_q"], arguments["max_seqlen_kv"] = case.s_q, case.s_kv
        if case.arbitrary is not None:
            arguments["attention_mask"] = case.arbitrary
        if case.bias_type != "no_bias":
            arguments["core_attention_bias_type"] = case.bias_type
            arguments["core_attention_bias"] = case.bias
            arguments["alibi_slopes"] = case.slopes
        return arguments


def make_module(
    case: AttentionCase, qkv_format: str = "bshd", **options: Any
) -> DotProductAttention:
    module = DotProductAttention(
        case.heads,
        (case.d_qk, case.d_v),
        num_gqa_groups=case.groups,
        qkv_format=qkv_format,
        attn_mask_type=case.mask_type,
        window_size=case.window,
        bottom_right_diagonal=case.bottom_right,
        softmax_scale=case.scale,
        softmax_type=case.softmax_type,
        **options,
    )
    if case.softmax_type == "learnable":
        with torch.no_grad():
            module.softmax_offset.copy_(case.offset)
    return module


def accepting_backends(module: DotProductAttention, q, k, v, arguments) -> list[str]:
    reasons = module.explain_backends(q, k, v, **arguments)
    return [name for name, reason in reasons.items() if reason is None]


def check_against_reference(
    case: AttentionCase,
    layout: Layout,
    backend: str,
    monkeypatch,
    dtype=torch.float64,
    mask_as="lengths",
) -> None:
    """Forward and every gradient, with NaN in padding."""
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    poisoned = make_inputs(case, dtype, padding=torch.nan)
    clean = [x.clone().requires_grad_() for x in make_inputs(case, torch.float64, padding=0.0)]
    leaves = [x.requires_grad_() for x in poisoned]
    if case.bias is not None:
        case.bias = case.bias.detach().clone().requires_grad_()
    arguments = layout.arguments(mask_as)
    if case.bias is not None:
        arguments["core_attention_bias"] = case.bias.detach().clone().requires_grad_()
    lengths = (case.lengths_q, case.lengths_kv, case.lengths_kv)
    packed = [layout.pack(x, n) for x, n in zip(leaves, lengths, strict=True)]
    module = make_module(case, layout.format)
    if not accepting_backends(module, *packed, arguments):
        with pytest.raises(ValueError, match="no backend accepts"):
            module(*packed, **arguments)
        return
    out = layout.unpack(module(*packed, **arguments))
    result = reference_attention(case, *clean)
    assert_within(out, result.out, output_bound(case, result, *clean, dtype=dtype), "out")
    grad_out = random_tensor(tuple(out.shape), dtype=dtype, seed=4)
    if layout.format == "thd":
        for b, n in enumerate(case.lengths_q):
            grad_out[b, n:] = 0
    out.backward(grad_out)
    result.out.backward(grad_out.double())
    bounds = gradient_bound(case, result, tuple(clean), grad_out, dtype)
    for name, leaf, expected, bound in zip("qkv", leaves, clean, bounds, strict=False):
        assert_within(leaf.grad, expected.grad, bound, f"d{name}")
    if case.is_padded():
        for b, n in enumerate(case.lengths_kv):
            assert not leaves[1].grad[b, n:].any() and not leaves[2].grad[b, n:].any()
    if case.bias is not None:
        bias = arguments["core_attention_bias"]
        assert_within(bias.grad, case.bias.grad, bounds[3].sum(0, keepdim=True), "dbias")
    if case.softmax_type == "learnable":
        p, v = result.probabilities, clean[2].detach().repeat_interleave(2, 2)
        rest = 1 - p.sum(-1)  # probability of the sink
        d_p = torch.einsum("bihd,bjhd->bhij", grad_out.double(), v)
        expected = -(rest * (p * d_p).sum(-1))
        magnitude = (rest * (p * d_p.abs()).sum(-1)).sum((0, 2))
        # The parameter is FP32, and so is its gradient.
        bound = bounds[3].sum((0, 2, 3)) + magnitude * torch.finfo(torch.float32).eps
        assert_within(module.softmax_offset.grad, expected.sum((0, 2)), bound, "doffset")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("softmax_type", SOFTMAX_TYPES)
@pytest.mark.parametrize("bias_type", BIAS_TYPES)
@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd", "thd"])
def test_every_mask_bias_softmax_and_format(
    qkv_format, mask_type, bias_type, softmax_type, backend, monkeypatch
):
    if qkv_format == "thd" and "padding" not in mask_type:
        return  # refused: test_thd_needs_a_padding_mask
    window = (2, 0) if "causal" in mask_type else (2, 1)
    for shape, size in itertools.product(("self", "longer keys"), (None, window)):
        case = make_case(
            mask_type, shape, bias_type=bias_type, softmax_type=softmax_type, window=size
        )
        layout = Layout(case, qkv_format, gap=2 if shape == "self" and qkv_format == "thd" else 0)
        check_against_reference(case, layout, backend, monkeypatch)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bottom_right", [None, True, False])
@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("shape", ["longer keys", "longer queries"])
@pytest.mark.parametrize("window", [None, (1, 0), (0, 2), (-1, 1), (3, -1)])
def test_every_window_and_diagonal(window, shape, mask_type, bottom_right, backend, monkeypatch):
    if "causal" in mask_type and window is not None:
        window = (window[0], 0)
    case = make_case(mask_type, shape, window=window, bottom_right=bottom_right)
    for qkv_format in ("bshd", "thd") if case.is_padded() else ("bshd",):
        check_against_reference(case, Layout(case, qkv_format), backend, monkeypatch)
