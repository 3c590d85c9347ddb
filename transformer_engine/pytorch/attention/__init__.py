# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Attention modules and functions."""

from .dot_product_attention import (
    AttentionParams,
    DotProductAttention,
    explain_attention_backends,
    get_attention_backend,
)
from .inference import InferenceParams
from .masks import get_attention_mask
from .multi_head_attention import MultiheadAttention
from .rope import RotaryPositionEmbedding, apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb

__all__ = [
    "AttentionParams",
    "DotProductAttention",
    "InferenceParams",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
    "explain_attention_backends",
    "get_attention_backend",
    "get_attention_mask",
]
