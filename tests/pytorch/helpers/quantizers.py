# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizers and quantized tensors for tests, and the float64 meaning of per-tensor FP8."""

import functools
from typing import Any

import torch

from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)

from .formats import E4M3, E5M2, FloatFormat, decode_table, encode_reference

FP8_FORMATS = {DType.kFloat8E4M3: E4M3, DType.kFloat8E5M2: E5M2}


def delayed_quantizer(
    scale: float = 4.0, fp8_dtype: DType = DType.kFloat8E4M3, **usages: bool
) -> Float8Quantizer:
    """Delayed scaling with scale and amax of its own."""
    return Float8Quantizer(torch.full([1], scale), torch.zeros(1), fp8_dtype, **usages)


def current_quantizer(
    fp8_dtype: DType = DType.kFloat8E4M3, **settings: Any
) -> Float8CurrentScalingQuantizer:
    """Current scaling on the CPU."""
    return Float8CurrentScalingQuantizer(fp8_dtype, "cpu", **settings)


def mxfp8_quantizer(
    fp8_dtype: DType = DType.kFloat8E4M3, tiles: bool = False, **usages: bool
) -> MXFP8Quantizer:
    """MXFP8, in square tiles or not."""
    return MXFP8Quantizer(fp8_dtype, with_2d_quantization=tiles, **usages)


def block_quantizer(
    fp8_dtype: DType = DType.kFloat8E4M3,
    dim: int = 2,
    rowwise: bool = True,
    columnwise: bool = True,
    **settings: Any,
) -> Float8BlockQuantizer:
    """FP8 blocks: 128 x 128 tiles (dim 2) or 1 x 128."""
    return Float8BlockQuantizer(
        fp8_dtype, rowwise=rowwise, columnwise=columnwise, block_scaling_dim=dim, **settings
    )


def hybrid_quantizer(rowwise: bool = True, columnwise: bool = True) -> HybridQuantizer:
    """MXFP8 along the rows, FP8 blocks along the columns."""
    quantizer = HybridQuantizer(
        rowwise_quantizer=mxfp8_quantizer(), columnwise_quantizer=block_quantizer(dim=1)
    )
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    return quantizer


# Name -> function of usages (rowwise=, columnwise=) giving a quantizer of each format there is.
ALL_QUANTIZERS: dict[str, Any] = {
    "delayed": delayed_quantizer,
    "current": current_quantizer,
    "identity": IdentityQuantizer,
    "mxfp8": mxfp8_quantizer,
    "mxfp8_tiles": functools.partial(mxfp8_quantizer, tiles=True),
    "blocks": functools.partial(block_quantizer, dim=1, force_pow_2_scales=False),
    "tiles": block_quantizer,
    "nvfp4": NVFP4Quantizer,
    "nvfp4_tiles": functools.partial(NVFP4Quantizer, with_2d_quantization=True),
    "hybrid": hybrid_quantizer,
}
BLOCK_QUANTIZERS: dict[str, Any] = {
    name: make
    for name, make in ALL_QUANTIZERS.items()
    if name not in ("delayed", "current", "identity", "hybrid")
}
FLOAT8_QUANTIZERS: dict[str, Any] = {name: ALL_QUANTIZERS[name] for name in ("delayed", "current")}
USAGES = {
    "rowwise": {"rowwise": True, "columnwise": False},
    "columnwise": {"rowwise": False, "columnwise": True},
    "both": {"rowwise": True, "columnwise": True},
}


def reference_codes(values: torch.Tensor, scale: float, fmt: FloatFormat) -> torch.Tensor:
    """uint8 codes: the product with the scale is rounded to FP32 once, then to the format."""
    product = values.float() * torch.tensor(scale, dtype=torch.float32)
    return encode_reference(product.double(), fmt)


def reference_values(codes: torch.Tensor, scale_inv: float, fmt: FloatFormat) -> torch.Tensor:
    """float64 values of codes."""
    return decode_table(fmt)[codes.long()] * scale_inv


def reference_scale(amax: float, fmt: FloatFormat) -> float:
    """fp8_max / amax as IEEE FP32 division; 1 for an amax of 0."""
    if amax == 0:
        return 1.0
    quotient = torch.tensor(fmt.max_value, dtype=torch.float32) / torch.tensor(amax)
    return min(float(quotient), torch.finfo(torch.float32).max)
