# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations."""

from .basic import L2Normalization
from .fuser import FusibleOperation, Sequential

__all__ = ["FusibleOperation", "L2Normalization", "Sequential"]
