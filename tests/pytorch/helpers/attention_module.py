# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""An AttentionCase as inputs, arguments and a module."""

from __future__ import annotations

from typing import Any

import torch

from transformer_engine.pytorch.attention import DotProductAttention

from .attention import AttentionCase
from .generators import random_tensor


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
        assert module.softmax_offset is not None and case.offset is not None
        with torch.no_grad():
            module.softmax_offset.copy_(case.offset)
    return module
