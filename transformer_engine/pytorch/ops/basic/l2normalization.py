# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""L2 normalization over the last axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...jit import l2normalization_backward_fused, l2normalization_fwd_fused

__all__ = ["L2Normalization"]


class _Normalize(torch.autograd.Function):
    """Keeps the input and one FP32 reciprocal norm per row for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        out, rsqrt_norm = l2normalization_fwd_fused(x, eps)
        ctx.save_for_backward(x, rsqrt_norm)
        ctx.eps = eps
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, rsqrt_norm = ctx.saved_tensors
        return l2normalization_backward_fused(grad, x, rsqrt_norm, ctx.eps), None


class L2Normalization(torch.nn.Module):
    """``x * rsqrt(sum(x^2) + eps)`` over the last axis; FP32 inside; no parameters.

    Parameters
    ----------
    eps : float
        Added to the sum of squares.
    seq_length, micro_batch_size : int, optional
        Accepted; nothing needs warming up.
    """

    def __init__(
        self,
        *,
        eps: float = 1e-6,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        del seq_length, micro_batch_size
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[.., n]``; same shape and dtype.

        Raises
        ------
        TypeError
            `x` is not floating point.
        """
        if not x.is_floating_point():
            raise TypeError(
                f"L2Normalization.forward: x has dtype {x.dtype}; it must be floating point."
            )
        return _Normalize.apply(x, self.eps)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"eps={self.eps}"
