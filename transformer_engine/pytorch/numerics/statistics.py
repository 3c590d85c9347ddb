# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a quantization did to a tensor: range, scales, saturated and flushed values, error.

All measures compare a copy, as products read it, with the tensor it was made from, in FP64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..constants import DType
from ..cpp_extensions import cast as tex
from ..tensor import QuantizedTensorStorage

__all__ = [
    "CopyStatistics",
    "copy_statistics",
    "copy_values",
    "error_of",
    "hadamard_transformed",
    "signal_to_noise_db",
    "statistics_of",
]

# Kinds and flags of a copy, as native code numbers them (csrc/operand.h).
_PLAIN, _TENSOR, _BLOCKS, _TILES, _MXFP8, _NVFP4 = range(6)
_SQUARE_TILES, _ROW_SCALED, _HADAMARD, _SCALES_TO_256 = 2, 4, 8, 16
_GROUP = 16  # of the Hadamard transform, and of NVFP4's blocks

_NAMES = {
    DType.kFloat32: "float32",
    DType.kFloat16: "float16",
    DType.kBFloat16: "bfloat16",
    DType.kFloat8E4M3: "E4M3",
    DType.kFloat8E5M2: "E5M2",
}


@dataclass(frozen=True)
class _Code:
    """The largest code of a format without its sign, its value, and where values are beyond it.

    A magnitude from `beyond` on, half a step above the largest value, would be rounded to the next
    larger number, if the format had one.
    """

    largest: int
    value: float
    beyond: float


_CODES = {
    DType.kFloat8E4M3: _Code(0x7E, 448, 464),
    DType.kFloat8E5M2: _Code(0x7B, 57344, 61440),
    DType.kFloat4E2M1: _Code(0x7, 6, 7),
}


@dataclass(frozen=True)
class CopyStatistics:
    """Measures of one copy; None where there is nothing to compare or no scale."""

    format: str
    shape: tuple[int, int]
    amax: float
    scale_min: float | None
    scale_max: float | None
    saturated: float | None
    flushed: float | None
    snr_db: float | None


def error_of(exact: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """(relative error, the same in decibels): sqrt(sum (x - x')^2 / sum x^2) over the finite x,
    and 10 log10(sum x^2 / sum (x - x')^2).

    Without error 0 and inf; inf and -inf for an infinite one, and where all x are 0 and some x' are
    not. Both are NaN if an x or an x' is: nothing is known of a sum that leaves it out.
    """
    exact, other = exact.double(), other.double()
    if exact.isnan().any() or other.isnan().any():
        return math.nan, math.nan
    is_finite = exact.isfinite()
    signal = exact.where(is_finite, 0.0).square().sum().item()
    noise = (exact - other).where(is_finite, 0.0).square().sum().item()
    if noise == 0:
        return 0.0, math.inf
    if not math.isfinite(noise) or signal == 0:
        return math.inf, -math.inf
    return math.sqrt(noise / signal), 10 * math.log10(signal / noise)


def signal_to_noise_db(exact: torch.Tensor, other: torch.Tensor) -> float:
    """The error in decibels: the second number of `error_of`."""
    return error_of(exact, other)[1]


def hadamard_transformed(matrix: torch.Tensor) -> torch.Tensor:
    """FP64 [rows rounded up to 16, cols]: groups of 16 rows times the transform of the format."""
    signs = torch.tensor([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])
    index = torch.arange(_GROUP)
    common = index[:, None] & index
    ones = sum((common >> bit) & 1 for bit in range(4))
    rotation = (1 - 2 * (ones % 2)).double() * 0.25 * signs.double()[:, None]
    rows, cols = matrix.shape
    padded = matrix.new_zeros(-(-rows // _GROUP) * _GROUP, cols, dtype=torch.float64)
    padded[:rows] = matrix
    groups = padded.view(padded.shape[0] // _GROUP, _GROUP, cols)
    return (rotation.t().to(matrix.device) @ groups).view_as(padded)


@dataclass(frozen=True)
class _Copy:
    """One copy of a matrix [rows, cols], as `_native_operand` gives it."""

    parts: tuple[Any, ...]
    is_columnwise: bool
    rows: int
    cols: int

    @property
    def kind(self) -> int:
        return int(self.parts[3])

    @property
    def dtype(self) -> DType:
        return DType(self.parts[4])

    def has(self, flag: int) -> bool:
        return bool(self.parts[5] & flag)

    def untransformed(self) -> _Copy:
        """The same bytes as a copy of the transformed matrix, which has whole groups of rows."""
        rows = -(-self.rows // _GROUP) * _GROUP
        parts = (*self.parts[:5], self.parts[5] & ~_HADAMARD)
        return _Copy(parts, self.is_columnwise, rows, self.cols)

    def values(self) -> torch.Tensor:
        """FP32 [rows, cols]"""
        sizes = [self.rows, self.cols]
        if self.kind == _PLAIN:
            return self.parts[0].reshape(sizes).float()  # type: ignore[no-any-return]
        parts = (self.parts[0].view(self._stored_data_shape()), *self.parts[1:])
        rowwise, columnwise = (None, parts) if self.is_columnwise else (parts, None)
        return tex.dequantize_copies(sizes, rowwise, columnwise, int(DType.kFloat32))

    def layout(self) -> dict[str, Any]:
        flags = self.parts[5]
        return tex.copy_layout(
            self.kind, int(self.dtype), flags, self.is_columnwise, self.rows, self.cols
        )

    def _stored_data_shape(self) -> tuple[int, int]:
        shape: tuple[int, int] = self.layout()["data"]
        return shape

    def codes(self) -> torch.Tensor:
        """uint8 [rows, cols], without signs."""
        data = self.parts[0].view(self._stored_data_shape())
        if self.kind == _NVFP4:
            data = torch.stack([data & 0x7, (data >> 4) & 0x7], dim=-1).flatten(1)
        is_transposed = self.layout()["is_transposed"]
        data = data[:, : self.rows if is_transposed else self.cols]
        return (data.t() if is_transposed else data) & 0x7F

    def block(self) -> tuple[int, int]:
        """Rows and columns, of the copy as stored, that share a scale."""
        if self.kind == _MXFP8 and self.is_columnwise:
            return 32, 1
        sizes = {_BLOCKS: (1, 128), _TILES: (128, 128), _MXFP8: (1, 32), _NVFP4: (1, _GROUP)}
        return sizes.get(self.kind, (max(1, self.rows), max(1, self.cols)))

    def scales_inv(self) -> torch.Tensor:
        """FP64 [blocks down, blocks across]: what elements are multiplied by, without padding."""
        scale_inv, amax = self.parts[1], self.parts[2]
        is_transposed = self.layout()["is_transposed"]
        sizes = (self.cols, self.rows) if is_transposed else (self.rows, self.cols)
        down, across = (-(-size // by) for size, by in zip(sizes, self.block(), strict=True))
        if self.kind == _TENSOR:
            return scale_inv.double().view(1, 1)  # type: ignore[no-any-return]
        held = scale_inv.t() if self.kind == _BLOCKS else scale_inv
        held = held[:down, :across].contiguous()
        if self.kind == _MXFP8:
            return torch.exp2(held.double() - 127).where(held != 255, math.nan)
        if self.kind == _NVFP4:
            largest = 256.0 if self.has(_SCALES_TO_256) else 448.0
            per_row = (amax.double() / (6 * largest)).view(-1, 1)
            return held.view(torch.float8_e4m3fn).double() * per_row
        return held.double()

    def has_values(self) -> torch.Tensor:
        """bool [blocks down, blocks across]: whether any code of a block is not 0."""
        codes = self.codes().t() if self.layout()["is_transposed"] else self.codes()
        (rows, cols), (height, width) = codes.shape, self.block()
        down, across = -(-rows // height), -(-cols // width)
        padded = codes.new_zeros(down * height, across * width)
        padded[:rows, :cols] = codes
        return padded.view(down, height, across, width).amax((1, 3)) > 0

    def format(self) -> str:
        """Short text: elements / size of the blocks that share a scale + modes."""
        name = _NAMES.get(self.dtype, "")
        if self.kind == _PLAIN:
            return name
        if self.kind in (_TENSOR, _BLOCKS, _TILES):
            return f"{name}/" + {_TENSOR: "tensor", _BLOCKS: "1x128", _TILES: "128x128"}[self.kind]
        size = 32 if self.kind == _MXFP8 else 16
        block = f"{size}x{size}" if self.has(_SQUARE_TILES) else f"{size}"
        family = f"MXFP8-{name}" if self.kind == _MXFP8 else "NVFP4"
        modes = {_HADAMARD: "+RHT", _ROW_SCALED: "+rows"}
        return f"{family}/{block}" + "".join(text for flag, text in modes.items() if self.has(flag))


def _scale_range(copy: _Copy) -> tuple[float | None, float | None]:
    """(smallest, largest) scale, the inverse of what is stored; blocks of zeros left out."""
    if copy.kind == _PLAIN or copy.rows * copy.cols == 0:
        return None, None
    scales_inv = copy.scales_inv()
    usable = scales_inv.isfinite() & (scales_inv > 0)
    if copy.kind != _TENSOR:
        usable &= copy.has_values()
    usable = scales_inv[usable]
    if usable.numel() == 0:
        return None, None
    return 1 / usable.max().item(), 1 / usable.min().item()


def _amax(values: torch.Tensor) -> float:
    return values.abs().nan_to_num(nan=0.0, posinf=math.inf).max().item() if values.numel() else 0.0


def copy_values(parts: tuple[Any, ...], is_columnwise: bool, shape: torch.Size) -> torch.Tensor:
    """FP32 [rows, cols] of a copy as products read it: of a transformed one, transformed, with
    whole groups of 16 rows. Parameters as of `copy_statistics`.
    """
    copy = _Copy(parts, is_columnwise, math.prod(shape[:-1]), shape[-1] if shape else 1)
    return (copy.untransformed() if copy.has(_HADAMARD) else copy).values()


def copy_statistics(
    parts: tuple[Any, ...], is_columnwise: bool, source: torch.Tensor | None, shape: torch.Size
) -> CopyStatistics:
    """Measures of one copy.

    Parameters
    ----------
    parts : tuple
        ``(data, scale_inv, amax, kind, dtype, flags)`` of ``_native_operand()``.
    is_columnwise : bool
        Which of the two copies it is.
    source : torch.Tensor, optional
        The tensor it was made from; None where that is not known.
    shape : torch.Size
        Logical shape of the tensor.
    """
    cols = shape[-1] if shape else 1
    copy = _Copy(parts, is_columnwise, math.prod(shape[:-1]), cols)
    text, logical = copy.format(), (copy.rows, copy.cols)
    exact = None if source is None else source.detach().reshape(logical).double()
    if copy.has(_HADAMARD):
        copy = copy.untransformed()
        exact = None if exact is None else hadamard_transformed(exact)
    values = copy.values()
    scales = _scale_range(copy)
    if exact is None:
        return CopyStatistics(text, logical, _amax(values), *scales, None, None, None)
    count = max(1, exact.numel())
    saturated = 0.0
    if copy.kind != _PLAIN:
        code = _CODES[copy.dtype]
        is_beyond = exact.abs() * code.value >= values.double().abs() * code.beyond
        saturated = ((copy.codes() == code.largest) & is_beyond).sum().item() / count
    flushed = ((values == 0) & (exact != 0) & ~exact.isnan()).sum().item() / count
    snr = signal_to_noise_db(exact, values)
    return CopyStatistics(text, logical, _amax(exact), *scales, saturated, flushed, snr)


def statistics_of(
    quantized: Any, source: torch.Tensor | None, shape: torch.Size
) -> tuple[CopyStatistics | None, CopyStatistics | None]:
    """(rowwise, columnwise) measures of a quantized tensor or storage: of what products read along
    either axis, None for what it does not hold.
    """
    if not isinstance(quantized, QuantizedTensorStorage):
        # A class of the user's: products read what it dequantizes to.
        is_plain = type(quantized) is torch.Tensor
        plain = quantized if is_plain else quantized.dequantize()
        parts = (plain.float(), None, None, _PLAIN, int(DType.kFloat32), 0)
        made = copy_statistics(parts, False, source, shape)
        named = CopyStatistics(**{**vars(made), "format": type(quantized).__name__})
        return named, named
    rowwise, columnwise = quantized._native_operand()  # type: ignore[attr-defined]
    found = [
        None if parts is None else copy_statistics(parts, is_columnwise, source, shape)
        for parts, is_columnwise in ((rowwise, False), (columnwise, True))
    ]
    # One copy serves both where both would have the same values.
    for here, other, parts in ((0, 1, columnwise), (1, 0, rowwise)):
        if found[here] is None and parts is not None and _serves_both(parts):
            found[here] = found[other]
    return found[0], found[1]


def _serves_both(parts: tuple[Any, ...]) -> bool:
    kind, flags = parts[3], parts[5]
    is_tiled = bool(flags & _SQUARE_TILES) and not flags & _HADAMARD
    return kind in (_PLAIN, _TENSOR, _TILES) or is_tiled
