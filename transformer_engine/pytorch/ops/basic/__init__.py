# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Basic operations, one file each."""

from .l2normalization import L2Normalization

__all__ = ["L2Normalization"]
