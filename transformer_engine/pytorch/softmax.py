# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Softmax of attention scores with scale and mask, in one native pass.

    y = softmax(scale * x over the visible columns)

FP32 inside, rounded once. Columns that are masked out give 0; so does a row without any visible
column. FP32, BF16 and FP16; any number of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_engine.common.environment import read_switch

from .arguments import check_callables, check_flag, check_number, check_tensor
from .attention.masks import get_attention_mask, normalize_mask_type
from .cpp_extensions.softmax import (
    scaled_aligned_causal_masked_softmax_forward,
    scaled_masked_softmax_forward,
    scaled_softmax_backward,
    scaled_softmax_forward,
    scaled_upper_triang_masked_softmax_forward,
)

__all__ = [
    "FusedScaleMaskSoftmax",
    "scaled_aligned_causal_masked_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
    "scaled_upper_triang_masked_softmax",
]

_NATIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _ScaledSoftmax(torch.autograd.Function):
    """One of the native forward passes; their gradient is one formula. Saves the output only."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Callable[..., Tensor], x: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        out = kernel(x, scale) if mask is None else kernel(x, mask, scale)
        ctx.save_for_backward(out)
        ctx.scale = scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        return None, scaled_softmax_backward(grad, out, ctx.scale), None, None


def _check_scale(who: str, name: str, scale: Any) -> float:
    """A finite number, or a tensor of one."""
    if isinstance(scale, Tensor) and scale.numel() == 1 and not scale.is_complex():
        scale = scale.item()
    return check_number(who, name, scale)


def _check_scores(who: str, x: Tensor, rank: int) -> None:
    if check_tensor(who, "x", x).dim() != rank:
        axes = "[b, h, q, k]" if rank == 4 else "[b, s, s]"
        raise ValueError(f"{who}: x has shape {tuple(x.shape)}; it must be {axes}.")
    if x.dtype not in _NATIVE_DTYPES:
        raise TypeError(f"{who}: x has dtype {x.dtype}; it must be FP32, BF16 or FP16.")


def scaled_softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    """``softmax(scale * x)`` over the last axis of ``[b, h, q, k]`` scores.

    Returns
    -------
    torch.Tensor
        Same shape and dtype.

    Raises
    ------
    ValueError, TypeError
        Another number of axes, another dtype.
    """
    who = "scaled_softmax"
    _check_scores(who, x, 4)
    scale = _check_scale(who, "scale", scale)
    return _ScaledSoftmax.apply(scaled_softmax_forward, x, None, scale)


def scaled_masked_softmax(x: Tensor, mask: Tensor | None, scale: float = 1.0) -> Tensor:
    """``softmax(scale * x)`` over the columns which `mask` leaves visible.

    Parameters
    ----------
    x : torch.Tensor
        Scores ``[b, h, q, k]``.
    mask : torch.Tensor or None
        Boolean or uint8 ``[b or 1, 1, q, k]``, True (1) = masked out. None masks nothing.
    scale : float
        Multiplies the scores.

    Raises
    ------
    ValueError, TypeError
        Scores or mask of another shape or dtype.
    """
    who = "scaled_masked_softmax"
    _check_scores(who, x, 4)
    scale = _check_scale(who, "scale", scale)
    if mask is None:
        return _ScaledSoftmax.apply(scaled_softmax_forward, x, None, scale)
    if check_tensor(who, "mask", mask).dtype not in (torch.bool, torch.uint8):
        raise TypeError(f"{who}: mask has dtype {mask.dtype}; it must be bool, True = masked out.")
    batch, _, rows, columns = x.shape
    shape = tuple(mask.shape)
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[1:] != (1, rows, columns):
        raise ValueError(
            f"{who}: mask has shape {shape}; for x of shape {tuple(x.shape)} it must be "
            f"({batch} or 1, 1, {rows}, {columns})."
        )
    return _ScaledSoftmax.apply(scaled_masked_softmax_forward, x, mask, scale)


def scaled_upper_triang_masked_softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    """``softmax(scale * x)`` of ``[b, s, s]`` scores; row i sees the columns up to i."""
    who = "scaled_upper_triang_masked_softmax"
    _check_scores(who, x, 3)
    scale = _check_scale(who, "scale", scale)
    if x.shape[1] != x.shape[2]:
        raise ValueError(
            f"{who}: x has shape {tuple(x.shape)}; the last two sizes must agree. Use "
            "scaled_aligned_causal_masked_softmax for rectangular scores."
        )
    return _ScaledSoftmax.apply(scaled_upper_triang_masked_softmax_forward, x, None, scale)


def scaled_aligned_causal_masked_softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    """``softmax(scale * x)`` of ``[b, h, q, k]`` scores; row i sees the columns up to i + k - q."""
    who = "scaled_aligned_causal_masked_softmax"
    _check_scores(who, x, 4)
    scale = _check_scale(who, "scale", scale)
    return _ScaledSoftmax.apply(scaled_aligned_causal_masked_softmax_forward, x, None, scale)


class FusedScaleMaskSoftmax(torch.nn.Module):
    """Scale, mask and softmax of attention scores.

    The native pass serves FP32, BF16 and FP16 scores with no mask, causal masks and masks of
    shape ``[b or 1, 1, q, k]``; anything else, and everything with NVTE_MASKED_SOFTMAX_FUSION=0
    (read when the module is made), runs as separate torch operators. Both mask the same columns.

    Parameters
    ----------
    mask_func : callable
        ``mask_func(scores, mask)`` for the separate operators: fills what `mask` hides.
    softmax_in_fp32 : bool
        Whether separate operators convert half scores to FP32 first; needed for a scale.
    """

    def __init__(
        self, mask_func: Callable[[Tensor, Tensor], Tensor], softmax_in_fp32: bool = True
    ) -> None:
        super().__init__()
        who = type(self).__name__
        check_callables(who, mask_func=mask_func)
        self.mask_func = mask_func
        self.softmax_in_fp32 = check_flag(who, "softmax_in_fp32", softmax_in_fp32)
        self.scaled_masked_softmax_fusion = read_switch("NVTE_MASKED_SOFTMAX_FUSION")

    def forward(
        self,
        inp: Tensor,
        mask: Tensor | None,
        attn_mask_type: str,
        softmax_scale: float | None = None,
    ) -> Tensor:
        """Probabilities.

        Parameters
        ----------
        inp : torch.Tensor
            Scores ``[b, h, q, k]``.
        mask : torch.Tensor or None
            True = masked out; not read for causal types, whose mask is the triangle.
        attn_mask_type : str
            A mask type of :class:`DotProductAttention`.
        softmax_scale : float, optional
            Multiplies the scores, default 1.

        Raises
        ------
        ValueError
            Not four axes, an unknown mask type, a scale without `softmax_in_fp32`.
        TypeError
            Scores or mask that are no tensor, integer or complex scores, a scale that is no number.
        """
        who = "FusedScaleMaskSoftmax.forward"
        if check_tensor(who, "inp", inp).dim() != 4:
            raise ValueError(f"{who}: inp has shape {tuple(inp.shape)}; it must be [b, h, q, k].")
        if not inp.is_floating_point():
            raise TypeError(
                f"{who}: inp has dtype {inp.dtype}; probabilities need a floating-point one. Cast "
                "the scores, for example with float()."
            )
        if mask is not None:
            check_tensor(who, "mask", mask)
        if softmax_scale is not None:
            softmax_scale = _check_scale(who, "softmax_scale", softmax_scale)
        name = normalize_mask_type(attn_mask_type, who)
        if softmax_scale is not None and not self.softmax_in_fp32:
            raise ValueError(
                f"{who}: softmax_scale is {softmax_scale} with softmax_in_fp32=False; scaled "
                "scores may overflow in half precision. Set softmax_in_fp32=True."
            )
        scale = 1.0 if softmax_scale is None else softmax_scale
        batch, _, rows, columns = inp.shape
        if name == "no_mask":
            mask = None
        elif name in ("causal", "causal_bottom_right"):
            if self._is_native(inp) and (rows == columns or name == "causal_bottom_right"):
                return scaled_aligned_causal_masked_softmax(inp, scale)
            mask = get_attention_mask(name, rows, columns, device=inp.device)
        fits = mask is None or (
            mask.dim() == 4 and mask.shape[0] in (1, batch) and mask.shape[1:] == (1, rows, columns)
        )
        if fits and self._is_native(inp):
            return scaled_masked_softmax(inp, mask, scale)
        return self._forward_torch(inp, mask, scale)

    def _is_native(self, inp: Tensor) -> bool:
        return self.scaled_masked_softmax_fusion and inp.dtype in _NATIVE_DTYPES

    def _forward_torch(self, inp: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Separate operators."""
        dtype = inp.dtype
        scores = inp.float() if self.softmax_in_fp32 and dtype.itemsize == 2 else inp
        scores = scores * scale
        if mask is not None:
            mask = mask.to(torch.bool)
            scores = self.mask_func(scores, mask)
        probabilities = torch.softmax(scores, dim=-1)
        if mask is not None:
            probabilities = probabilities.masked_fill(mask, 0.0)
        return probabilities.to(dtype)
