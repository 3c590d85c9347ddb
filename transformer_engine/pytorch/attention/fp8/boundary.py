# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""What crosses attention's boundaries as FP8: inputs, output and their gradients.

Between the projections and attention, tensors are split, joined and permuted. There they travel as
values of the layer's dtype, and their scale beside them in a `Boundary`: FP8's steps are so much
wider than BF16's that the codes are found again exactly. `decode` and `encode` are the ends of that
way; gradients go it backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...constants import DType
from ...tensor import Float8CurrentScalingQuantizer, Float8Tensor
from .codes import Codes, Scale, Slots, flat, split_like

__all__ = ["Boundary", "boundary_of", "decode", "decode_parts", "encode", "mark_query"]


class Boundary:
    """Scales that belong to one call's tensors; None where a tensor is not in FP8."""

    __slots__ = ("input_gradient_scale", "input_scales", "output_gradient_scale", "output_scale")

    def __init__(self) -> None:
        self.input_scales: tuple[Scale, Scale, Scale] | None = None  # of query, key, value
        self.output_scale: Scale | None = None
        self.output_gradient_scale: Scale | None = None
        self.input_gradient_scale: Scale | None = None

    def encode_inputs(self, slots: Slots, qkv: Sequence[Tensor]) -> list[Codes]:
        """The codes they came from, or new ones with one scale."""
        if self.input_scales is not None:
            return [scale.encode(x) for scale, x in zip(self.input_scales, qkv, strict=True)]
        codes = slots.encode("qkv", flat(qkv))
        parts = split_like(codes.data, [x.shape for x in qkv])
        return [Codes(part, codes.scale) for part in parts]

    def encode_output_gradient(self, slots: Slots, grad: Tensor) -> Codes:
        """Likewise."""
        if self.output_gradient_scale is not None:
            return self.output_gradient_scale.encode(grad)
        return slots.encode("do", grad.contiguous())

    def round_input_gradients(self, slots: Slots, gradients: Sequence[Tensor]) -> list[Tensor]:
        """In FP8 where they leave so, or where their scale is known beforehand."""
        if self.input_scales is None and not slots.is_delayed("dqkv"):
            return list(gradients)
        codes = slots.encode("dqkv", flat(gradients))
        self.input_gradient_scale = codes.scale
        return split_like(codes.values(), [x.shape for x in gradients])


_BOUNDARY = "_te_attention_boundary"  # of a query whose call has one


def boundary_of(query: Any) -> Boundary | None:
    """What `decode` left for the call that gets this query."""
    return getattr(query, _BOUNDARY, None)


def mark_query(query: Tensor, boundary: Boundary) -> None:
    """Tell the call that gets this query where the scales of its inputs stand."""
    setattr(query, _BOUNDARY, boundary)


def _tensor_of(codes: Codes, dtype: torch.dtype) -> Float8Tensor:
    quantizer = Float8CurrentScalingQuantizer(
        codes.scale.dtype, device=codes.data.device, columnwise=False
    )
    return Float8Tensor(
        codes.data.shape,
        dtype,
        codes.data,
        codes.scale.scale_inv,
        codes.scale.dtype,
        quantizer=quantizer,
    )


def _scale_of(x: Float8Tensor) -> Scale:
    return Scale(x._scale_inv, DType.cast(x._fp8_dtype))


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Float8Tensor, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        return x.dequantize(dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scale = ctx.boundary.input_gradient_scale
        if scale is None:  # the backward was in high precision
            return grad, None
        return _tensor_of(scale.encode(grad), grad.dtype), None


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, boundary: Boundary, slots: Slots) -> Float8Tensor:
        ctx.boundary, ctx.dtype = boundary, out.dtype
        scale = boundary.output_scale
        codes = slots.encode("o", out.contiguous()) if scale is None else scale.encode(out)
        return _tensor_of(codes, out.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if isinstance(grad, Float8Tensor):
            ctx.boundary.output_gradient_scale = _scale_of(grad)
            grad = grad.dequantize(dtype=ctx.dtype)
        return grad, None, None


def decode(x: Float8Tensor, boundary: Boundary) -> Tensor:
    """Values of query, key and value in one FP8 tensor; its gradient will be FP8, too."""
    scale = _scale_of(x)
    boundary.input_scales = (scale, scale, scale)
    result: Tensor = _Decode.apply(x, boundary)
    return result


def decode_parts(owner: str, qkv: Sequence[Any], boundary: Boundary) -> list[Tensor]:
    """Values of query, key and value that are FP8 tensors, each with its scale.

    Raises
    ------
    TypeError
        Not all of them are.
    """
    for name, x in zip(("query_layer", "key_layer", "value_layer"), qkv, strict=True):
        if not isinstance(x, Float8Tensor):
            raise TypeError(
                f"{owner}.forward: {name} is a {type(x).__name__} and query_layer a Float8Tensor; "
                "all three must be, or none. Quantize or dequantize() the others."
            )
    query, key, value = (_scale_of(x) for x in qkv)
    boundary.input_scales = (query, key, value)
    return [_Decode.apply(x, boundary) for x in qkv]


def encode(out: Tensor, boundary: Boundary, slots: Slots) -> Float8Tensor:
    """The output in FP8, the codes it came from if it came from codes; its gradient may be FP8."""
    result: Float8Tensor = _Encode.apply(out, boundary, slots)
    return result
