# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Native parts of attention."""

from transformer_engine_torch import Float8Attention, FusedAttention, attend, split_heads

__all__ = ["Float8Attention", "FusedAttention", "attend", "split_heads"]
