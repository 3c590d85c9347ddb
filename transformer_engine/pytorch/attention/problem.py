# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""The attention problem: what a backend decides by, and the tensors it gets besides query, key and
value.

scores = scale * (Q K^T + pre_bias) + post_bias          [b, h, s_q, s_kv]
P      = softmax(scores on visible keys)                 rows without a visible key are 0
out    = dropout(P) V                                    [.., h * d_v]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .masks import MaskRule

__all__ = ["QKV_FORMATS", "SOFTMAX_TYPES", "AttentionOperands", "AttentionParams"]

QKV_FORMATS = ("sbhd", "bshd", "thd")
SOFTMAX_TYPES = ("vanilla", "off-by-one", "learnable")


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Everything that selects and configures a backend; no tensor.

    Sizes are those of this rank. `max_seqlen_q` and `max_seqlen_kv` are the sizes of the sequence
    axes of sbhd and bshd inputs; for thd they are what the caller gave, None when they must be read
    from `cu_seqlens`.
    """

    qkv_format: str
    dtype: torch.dtype
    device: torch.device
    batch_size: int
    num_heads: int
    num_gqa_groups: int
    head_dim_qk: int
    head_dim_v: int
    max_seqlen_q: int | None
    max_seqlen_kv: int | None
    mask: MaskRule
    softmax_scale: float
    attention_dropout: float = 0.0  # probability in effect: 0 outside training
    softmax_type: str = "vanilla"
    core_attention_bias_type: str = "no_bias"
    core_attention_bias_dtype: torch.dtype | None = None
    return_max_logit: bool = False
    cu_seqlens_on_host: bool = False
    has_cu_seqlens: bool = False  # both cumulative lengths are given
    deterministic: bool = False
    first_head: int = 0  # index of the first local head among all heads, for ALiBi slopes
    total_heads: int = 0

    @property
    def is_packed(self) -> bool:
        """Whether the batch is one long row of tokens (thd)."""
        return self.qkv_format == "thd"

    @property
    def has_bias(self) -> bool:
        """Whether anything is added to the scores."""
        return self.core_attention_bias_type != "no_bias"

    @property
    def needs_operands(self) -> bool:
        """Whether tensors besides query, key and value take part."""
        masked = self.mask.pads or self.mask.arbitrary or self.is_packed
        return masked or self.has_bias or self.softmax_type != "vanilla"


@dataclass(slots=True)
class AttentionOperands:
    """Tensors besides query, key and value; None where the problem does not use them."""

    attention_mask: Tensor | tuple[Tensor, Tensor] | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_kv: Tensor | None = None
    cu_seqlens_q_padded: Tensor | None = None
    cu_seqlens_kv_padded: Tensor | None = None
    bias: Tensor | None = None
    alibi_slopes: Tensor | None = None
    softmax_offset: Tensor | None = None

    def packed_lengths(self, side: str) -> tuple[Tensor, Tensor | None]:
        """Cumulative lengths of side "q" or "kv" of a packed batch, and their padded form."""
        if side == "q":
            cu_seqlens, padded = self.cu_seqlens_q, self.cu_seqlens_q_padded
        else:
            cu_seqlens, padded = self.cu_seqlens_kv, self.cu_seqlens_kv_padded
        assert cu_seqlens is not None  # a packed batch without them was refused
        return cu_seqlens, padded
