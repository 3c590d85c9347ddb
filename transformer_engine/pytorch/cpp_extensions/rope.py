# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Native rotary embeddings."""

from transformer_engine_torch import rotate, split_and_rotate

__all__ = ["rotate", "split_and_rotate"]
