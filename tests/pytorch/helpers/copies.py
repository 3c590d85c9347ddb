# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantized copies decoded from their bytes, in float64, by the formats' definitions.

A copy is what native code hands out: (data, scale_inv, amax, kind, dtype, flags). Nothing of the
library decodes here, so that what modules compute can be held against what they were given.
"""

from __future__ import annotations

from typing import Any

import torch

from .formats import E4M3, E5M2, decode_table

# The numbers of csrc/operand.h, which are part of the tensors' protocol.
PLAIN, TENSOR, FP8_BLOCKS, FP8_TILES, MXFP8, NVFP4 = range(6)
ROW_SCALED, HADAMARD, SCALES_TO_256 = 4, 8, 16
_E5M2 = 8
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _spread(scales: torch.Tensor, rows: int, cols: int, block: tuple[int, int]) -> torch.Tensor:
    """One scale per element of a [rows, cols] matrix from one per block, padding cut off."""
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[:rows, :cols]


def _e8m0(codes: torch.Tensor) -> torch.Tensor:
    values = torch.exp2(codes.double() - 127)
    return torch.where(codes == 255, torch.nan, values)


def decode_e2m1(data: torch.Tensor) -> torch.Tensor:
    """Packed bytes [rows, n] as float64 [rows, 2 n]: the low half of a byte comes first."""
    table = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=torch.float64)
    nibbles = torch.stack([data & 15, data >> 4], dim=-1).flatten(1)
    return table[nibbles.long()]


def decode_stored(copy: tuple[Any, ...], is_columnwise: bool, rows: int, cols: int) -> torch.Tensor:
    """The copy's values as the GEMM along its direction contracts them, float64.

    Rowwise [rows, cols]; columnwise [cols, rows], in whole groups of 16 where it is transformed.
    """
    data, scale, _, kind, dtype, flags = copy
    if kind == PLAIN:
        values = data.double().reshape(rows, cols)
        return values.t() if is_columnwise else values
    if kind == NVFP4:
        return _decode_nvfp4(copy, *((cols, rows) if is_columnwise else (rows, cols)))
    codes = decode_table(E5M2 if dtype == _E5M2 else E4M3)[data.long()]
    if kind == MXFP8:
        block = (32, 1) if is_columnwise else (1, 32)
        values = codes.reshape(rows, cols) * _spread(_e8m0(scale), rows, cols, block)
        return values.t() if is_columnwise else values
    stored = codes.reshape((cols, rows) if is_columnwise else (rows, cols))
    if kind == TENSOR:
        return stored * scale.double()
    if kind == FP8_BLOCKS:
        return stored * _spread(scale.double().t(), stored.shape[0], stored.shape[1], (1, 128))
    assert kind == FP8_TILES and not flags & (ROW_SCALED | HADAMARD)
    return stored * _spread(scale.double(), stored.shape[0], stored.shape[1], (128, 128))


def _decode_nvfp4(copy: tuple[Any, ...], rows: int, cols: int) -> torch.Tensor:
    data, scale, amax, _, _, flags = copy
    values = decode_e2m1(data)
    kept = values.shape[1] if flags & HADAMARD else cols
    scales = _spread(decode_table(E4M3)[scale.long()], rows, kept, (1, 16))
    bound = 256.0 if flags & SCALES_TO_256 else 448.0
    factor = amax.double() / (6 * bound)
    return values[:, :kept] * scales * (factor[:, None] if flags & ROW_SCALED else factor)


def quantized(
    core: Any, tensor: torch.Tensor, *, columnwise: bool, alone: bool = True
) -> torch.Tensor:
    """What a GEMM reads of a matrix that a native quantizer quantizes: float64.

    Rowwise [rows, cols] or columnwise [cols, rows]; `alone` if only that copy is made.
    """
    rows, cols = tensor.shape
    if alone:
        core.rowwise_usage, core.columnwise_usage = not columnwise, columnwise
    copies = core.quantize(tensor)
    core.rowwise_usage = core.columnwise_usage = True
    if hasattr(core, "copy_format"):
        copy = copies[columnwise]
    else:  # one scale per tensor: (data, transpose, scale_inv)
        copy = (copies[columnwise], copies[2], None, TENSOR, core.fp8_dtype, 0)
    return decode_stored(copy, columnwise, rows, cols)
