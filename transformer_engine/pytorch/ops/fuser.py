# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fusible operations: the names that annotations of clients need, not yet the operations."""

from __future__ import annotations

from typing import Any

import torch


class FusibleOperation(torch.nn.Module):
    """Base of operations that can be fused; not in this version.

    Raises
    ------
    NotImplementedError
        When constructed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        raise NotImplementedError(
            f"{type(self).__name__}: fusible operations are not in this version. Use the modules "
            "of transformer_engine.pytorch, which fuse by themselves."
        )


class Sequential(FusibleOperation):
    """A sequence of fusible operations; not in this version.

    Raises
    ------
    NotImplementedError
        When constructed.
    """
