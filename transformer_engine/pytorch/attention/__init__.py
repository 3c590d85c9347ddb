# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Attention modules and functions."""

from .rope import RotaryPositionEmbedding, apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb

__all__ = [
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
]
