# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Core attention."""

from .dot_product_attention import DotProductAttention
from .utils import AttentionParams, explain_attention_backends, get_attention_backend

__all__ = [
    "AttentionParams",
    "DotProductAttention",
    "explain_attention_backends",
    "get_attention_backend",
]
