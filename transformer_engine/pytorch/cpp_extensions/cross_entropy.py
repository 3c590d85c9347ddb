# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Native cross entropy."""

from transformer_engine_torch import (
    cross_entropy_backward,
    cross_entropy_loss,
    cross_entropy_statistics,
    is_native,
)

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_loss",
    "cross_entropy_statistics",
    "is_native",
]
