# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `numerics_report` gives: rows of numbers, and their text as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["LayerError", "NumericsReport", "OperandRow"]


@dataclass(frozen=True)
class OperandRow:
    """One quantized operand of one product.

    Parameters
    ----------
    module : str
        Name in the model, with ``.fc1`` or ``.fc2`` for the two products of a `LayerNormMLP`.
    call : int
        Number of the module's call in this forward, from 0.
    gemm : {"fprop", "dgrad", "wgrad"}
        The product.
    operand : {"input", "weight", "grad_output"}
    format : str
        Elements, size of the blocks that share a scale, and modes: ``E4M3/tensor``,
        ``E4M3/1x128``, ``MXFP8-E4M3/32``, ``NVFP4/16x16``, ``NVFP4/16+RHT+SR`` (Hadamard
        transform, stochastic rounding), ``NVFP4/16+rows`` (an amax per row), ``NVFP4/16+4over6``
        (blocks whose amax may become 4); a dtype where nothing was quantized.
    shape : tuple of int
        As a matrix: the product of the leading sizes, and the last one.
    amax : float
        Largest magnitude before quantization (after the Hadamard transform, where there is one).
    scale_min, scale_max : float or None
        Of what elements are multiplied by to quantize; blocks of zeros may have none.
    saturated : float or None
        Share of values beyond the format's range by half a step or more, infinities included.
    flushed : float or None
        Share of values that were not 0 and now stand for 0.
    snr_db : float or None
        Signal-to-noise ratio, ``10 log10(sum x^2 / sum (x - x')^2)`` over the finite x; NaN where
        the tensor or the copy has one. None, as the two shares, for a tensor that was quantized
        before: what it was made from is not known.
    """

    module: str
    call: int
    gemm: str
    operand: str
    format: str
    shape: tuple[int, int]
    amax: float
    scale_min: float | None
    scale_max: float | None
    saturated: float | None
    flushed: float | None
    snr_db: float | None


@dataclass(frozen=True)
class LayerError:
    """The error of one result of one layer against FP32 arithmetic on the same values.

    Parameters
    ----------
    module : str
    call : int
    tensor : str
        ``"output"``, ``"grad_input"``, or ``"grad "`` and the name of a weight.
    shape : tuple of int
    relative_error : float
        ``norm(result - reference) / norm(reference)`` over the finite elements of the reference; 0
        where both are 0, NaN where either has a NaN.
    snr_db : float
        The same in decibels: inf without error, NaN where the relative error is.
    """

    module: str
    call: int
    tensor: str
    shape: tuple[int, ...]
    relative_error: float
    snr_db: float


@dataclass(frozen=True)
class NumericsReport:
    """What `numerics_report` found; its text is two tables.

    Parameters
    ----------
    recipe : str
        Text of the recipe in force around the model.
    rows : list of OperandRow
        In the order of the calls; within a call, fprop, dgrad, wgrad.
    errors : list of LayerError
    """

    recipe: str
    rows: list[OperandRow] = field(default_factory=list)
    errors: list[LayerError] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """``{"recipe": str, "rows": [dict], "errors": [dict]}`` of plain values. Infinite ratios
        are floats, which `json` writes as ``Infinity``.
        """
        return asdict(self)

    def __str__(self) -> str:
        parts = [self.recipe]
        if self.rows:
            parts.append(_table(_OPERAND_COLUMNS, self.rows))
        parts.append(_table(_ERROR_COLUMNS, self.errors))
        return "\n\n".join(parts)

    __repr__ = __str__


def _called(row: Any) -> str:
    return f"{row.module}[{row.call}]" if row.call else str(row.module)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _range(row: OperandRow) -> str:
    low, high = _number(row.scale_min), _number(row.scale_max)
    return low if low == high else f"{low} .. {high}"


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    return "nan" if math.isnan(value) else f"{100 * value:.2f} %"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _shape(row: Any) -> str:
    return "x".join(str(size) for size in row.shape)


_Columns = Sequence[tuple[str, Callable[[Any], str]]]
_OPERAND_COLUMNS: _Columns = (
    ("module", _called),
    ("gemm", lambda row: row.gemm),
    ("operand", lambda row: row.operand),
    ("format", lambda row: row.format),
    ("shape", _shape),
    ("amax", lambda row: _number(row.amax)),
    ("scale", _range),
    ("saturated", lambda row: _share(row.saturated)),
    ("flushed", lambda row: _share(row.flushed)),
    ("SNR dB", lambda row: _ratio(row.snr_db)),
)
_NAME_COLUMNS = ("module", "gemm", "operand", "format", "against FP32")
_ERROR_COLUMNS: _Columns = (
    ("module", _called),
    ("against FP32", lambda row: row.tensor),
    ("shape", _shape),
    ("relative error", lambda row: _share(row.relative_error)),
    ("SNR dB", lambda row: _ratio(row.snr_db)),
)


def _table(columns: _Columns, rows: Sequence[Any]) -> str:
    """Aligned plain text: names to the left, numbers to the right."""
    cells = [[title for title, _ in columns]] + [[text(row) for _, text in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if title in _NAME_COLUMNS else cell.rjust(width)
            for cell, width, title in zip(line, widths, cells[0], strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * max(len(line) for line in lines), *lines[1:]])
