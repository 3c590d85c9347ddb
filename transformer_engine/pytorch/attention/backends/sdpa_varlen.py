# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""torch's scaled_dot_product_attention, one packed sequence after the other.

Needs the cumulative lengths in host memory. Then no padded batch is built, no score of a pair from
two sequences is computed, and tokens between sequences are never read. The inputs are split once,
so that the backward pass assembles each gradient with a single concatenation.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from ..masks import MaskRule, hidden_by_position
from ..problem import AttentionOperands, AttentionParams
from ..resolve import check_slots
from .base import AttentionSwitches, Runner
from .sdpa import causal_flag_holds, common_refusal, connect, sdpa


class SdpaVarlenBackend:
    """torch's operator on each sequence of a thd batch."""

    name = "TorchSDPAVarlen"

    def refusal(self, params: AttentionParams, switches: AttentionSwitches) -> str | None:
        """Packed inputs with lengths on the host, without bias."""
        reason = common_refusal(params, switches)
        if reason is not None:
            return reason
        if not params.is_packed:
            return f"it takes packed sequences only (qkv_format={params.qkv_format!r})"
        if not params.cu_seqlens_on_host:
            return "cu_seqlens are not in host memory, reading them would stall the device"
        if params.has_bias:
            return f"it has no bias (core_attention_bias_type={params.core_attention_bias_type!r})"
        return None

    def compile(self, params: AttentionParams) -> Runner:
        """Bind the problem."""
        grouped = params.num_heads != params.num_gqa_groups
        scale, dropout, rule = params.softmax_scale, params.attention_dropout, params.mask
        width = params.num_heads * params.head_dim_v
        has_flag = causal_flag_holds(scale)

        def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """One sequence ``[len, h, d]`` to ``[len, h * d_v]``."""
            mask, causal, empty_rows = _mask_of(rule, q.shape[0], k.shape[0], q.device)
            if causal and not has_flag:
                mask, causal = _lower_triangle(q.shape[0], q.device), False
            q, k, v = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
            out = sdpa(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)[0]
            if empty_rows is not None:
                out = out.masked_fill(empty_rows, 0)
            return out.transpose(0, 1).flatten(1)

        def run(q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None) -> Tensor:
            assert operands is not None  # a packed batch has lengths
            sizes_q = _slots("q", operands, q.shape[0], params.max_seqlen_q)
            sizes_kv = _slots("kv", operands, k.shape[0], params.max_seqlen_kv)
            queries, keys, values = q.split(sizes_q), k.split(sizes_kv), v.split(sizes_kv)
            pieces = [] if q.shape[0] > 0 else [q.new_zeros((0, width))]
            for slot, length in enumerate(sizes_q):
                if slot % 2 == 0 and length > 0 and sizes_kv[slot] > 0:
                    pieces.append(one(queries[slot], keys[slot], values[slot]))
                elif length > 0:
                    pieces.append(q.new_zeros((length, width)))
            out = torch.cat(pieces) if len(pieces) != 1 else pieces[0]
            return out if out.requires_grad else connect(out, q, k, v)

        return run


def _mask_of(
    rule: MaskRule, s_q: int, s_kv: int, device: torch.device
) -> tuple[Tensor | None, bool, Tensor | None]:
    """Mask in torch's polarity, whether torch's causal flag replaces it, rows without a key."""
    if rule.is_unbounded:
        return None, False, None
    if rule.is_causal and rule.shift(s_q, s_kv) == 0:
        return None, True, None
    pairs = hidden_by_position(rule, s_q, s_kv, None, device)
    assert pairs is not None  # an unbounded rule returned above
    hidden = pairs[0, 0]
    above = rule.right >= 0 and rule.shift(s_q, s_kv) + rule.right < 0
    below = rule.left >= 0 and s_q - 1 + rule.shift(s_q, s_kv) - rule.left > s_kv - 1
    if not (above or below):
        return ~hidden, False, None
    empty_rows = hidden.all(-1, keepdim=True)
    return ~hidden | empty_rows, False, empty_rows


def _lower_triangle(length: int, device: torch.device) -> Tensor:
    """torch's causal flag as a mask in torch's polarity."""
    return torch.ones((length, length), dtype=torch.bool, device=device).tril()


def _slots(side: str, operands: AttentionOperands, tokens: int, longest: int | None) -> list[int]:
    """Alternating sizes: tokens of a sequence, gap behind it, ...; they add up to all tokens."""
    cu_seqlens, cu_seqlens_padded = operands.packed_lengths(side)
    ends = cu_seqlens.tolist()
    offsets = ends if cu_seqlens_padded is None else cu_seqlens_padded.tolist()
    check_slots(side, ends, offsets, tokens, longest)
    sizes: list[int] = []
    for (start, after), (first, last) in zip(pairwise(offsets), pairwise(ends), strict=True):
        sizes += (last - first, after - start - (last - first))
    sizes[-1] += tokens - offsets[-1]
    return sizes
