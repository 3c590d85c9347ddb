# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures of quantized copies against formulas of the test's own, for every format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from helpers import exact_quantization as exact
from helpers.worked_examples import SIGN_MASK
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.cpp_extensions import cast as tex
from transformer_engine.pytorch.numerics.statistics import (
    CopyStatistics,
    copy_statistics,
    error_of,
    signal_to_noise_db,
)

E4M3, E5M2 = int(DType.kFloat8E4M3), int(DType.kFloat8E5M2)
KIND_TENSOR = 1
BLOCKS = {"format": "e4m3", "block": "1x128", "scales": "powers of two", "input type": "fp32"}
MXFP8 = {"format": "e4m3", "tiles": "no"}


def fp8_core(dim: int) -> Any:
    return tex.Float8BlockQuantizerCore(E4M3, True, True, 0.0, True, dim)


def nvfp4_core(*, rht: bool = False, tiles: bool = False, rows: bool = False) -> Any:
    return tex.NVFP4QuantizerCore(True, True, rht, rht, tiles, False, rows, "", 448, SIGN_MASK)


# (format as shown, quantizer, formula, its settings, which copy, whether it is stored transposed)
FORMATS = [
    ("E4M3/1x128", fp8_core(1), exact.fp8_block_copy, BLOCKS, "row", False),
    ("E4M3/1x128", fp8_core(1), exact.fp8_block_copy, BLOCKS, "column", True),
    *(
        ("E4M3/128x128", fp8_core(2), exact.fp8_block_copy, {**BLOCKS, "block": "128x128"}, *copy)
        for copy in (("row", False), ("column", True))
    ),
    *(
        (
            f"MXFP8-E5M2/32{'x32' if tiles else ''}",
            tex.MXFP8QuantizerCore(E5M2, True, True, tiles),
            lambda s, m, is_columnwise=usage == "column": exact.mxfp8_copy(s, m, is_columnwise),
            {"format": "e5m2", "tiles": "yes" if tiles else "no"},
            usage,
            False,
        )
        for tiles in (False, True)
        for usage in ("row", "column")
    ),
    ("NVFP4/16", nvfp4_core(), exact.nvfp4_copy, {}, "row", False),
    ("NVFP4/16", nvfp4_core(), exact.nvfp4_copy, {}, "column", True),
    ("NVFP4/16+RHT", nvfp4_core(rht=True), exact.nvfp4_copy, {"hadamard": "yes"}, "column", True),
    ("NVFP4/16x16", nvfp4_core(tiles=True), exact.nvfp4_copy, {"tiles": "yes"}, "column", True),
    ("NVFP4/16+rows", nvfp4_core(rows=True), exact.nvfp4_copy, {"row scaled": "yes"}, "row", False),
]


def matrix_of(tensor: torch.Tensor) -> exact.Matrix:
    return [[np.float32(x) for x in row] for row in tensor.tolist()]


def measures(
    source: exact.Matrix, values: exact.Matrix, scaled: exact.Matrix, limit: float
) -> tuple[float, float, float]:
    """(share saturated, share flushed, ratio in decibels)"""
    x, y, s = (np.array(matrix, dtype=np.float64) for matrix in (source, values, scaled))
    ratio = 10 * math.log10((x**2).sum() / ((x - y) ** 2).sum())
    return float((abs(s) >= limit).mean()), float(((y == 0) & (x != 0)).mean()), ratio


def inputs() -> torch.Tensor:
    """Sizes that no block divides, small and large values, a zero column."""
    torch.manual_seed(7)
    x = torch.randn(37, 41) * torch.tensor([1e-4, 1.0, 30.0]).repeat(14)[:41]
    x[:, 3] = 0
    return x


@pytest.mark.parametrize(
    ("text", "core", "formula", "settings", "usage", "is_transposed"),
    FORMATS,
    ids=[f"{row[0]}-{row[4]}" for row in FORMATS],
)
def test_measures_of_a_copy_follow_the_formula(text, core, formula, settings, usage, is_transposed):
    x = inputs()
    source = matrix_of(x.t() if is_transposed else x)
    result = formula(settings, source)
    wide = result["transformed"] if "hadamard" in settings else source
    limit = {"MXFP8": 61440.0, "E4M3/": 464.0, "NVFP4": 7.0}[text[:5]]
    saturated, flushed, ratio = measures(wide, result["values"], result["scaled"], limit)
    parts = core.quantize(x)[usage == "column"]
    found = copy_statistics(parts, usage == "column", x, x.shape)
    assert (found.format, found.shape) == (text, (37, 41))
    assert found.amax == np.abs(np.array(wide)).max()
    assert found.saturated == pytest.approx(saturated, abs=1e-12)
    assert found.flushed == pytest.approx(flushed, abs=1e-12)
    assert found.snr_db == pytest.approx(ratio, abs=1e-6)  # FP64 sums in another order
    assert found.flushed > 0 or usage == "column" or text.startswith("MXFP8")


def scales_of(found: CopyStatistics) -> tuple[float | None, float | None]:
    return found.scale_min, found.scale_max


def test_scales_are_those_of_blocks_with_values():
    x = torch.zeros(3, 300)
    x[0, 0], x[2, 299] = 7.0, 3.5  # blocks (0, 0) and (2, 2) of 1 x 128
    parts = fp8_core(1).quantize(x)[0]
    assert scales_of(copy_statistics(parts, False, x, x.shape)) == (64.0, 128.0)
    parts = tex.MXFP8QuantizerCore(E4M3, True, True, False).quantize(x)[0]
    assert scales_of(copy_statistics(parts, False, x, x.shape)) == (64.0, 128.0)
    x = torch.zeros(2, 32)
    x[0, 0], x[1, 31] = 6.0, 3.0
    # amax 6: an element is q * d * 6 / 2688 with d = 448 and 224.
    found = copy_statistics(nvfp4_core().quantize(x)[0], False, x, x.shape)
    assert scales_of(found) == pytest.approx((1.0, 2.0), rel=1e-6)


def per_tensor(x: torch.Tensor, scale: float, dtype: int) -> CopyStatistics:
    core = tex.Float8QuantizerCore(torch.tensor([scale]), torch.zeros(1), dtype, True, False)
    data, _, scale_inv = core.quantize(x)
    return copy_statistics((data, scale_inv, None, KIND_TENSOR, dtype, 0), False, x, x.shape)


def test_values_saturate_from_half_a_step_beyond_the_largest_on():
    x = torch.tensor([448.0, 463.9, 464.0, -500.0, float("inf"), float("nan"), 1.0, 0.0])
    found = per_tensor(x, 1.0, E4M3)
    assert found.saturated == 3 / 8 and found.flushed == 0
    assert found.format == "E4M3/tensor" and found.shape == (1, 8)
    assert found.amax == math.inf
    found = per_tensor(torch.tensor([57344.0, 61439.0, 61440.0]), 1.0, E5M2)
    assert found.saturated == pytest.approx(1 / 3)


def test_values_flush_up_to_half_the_smallest_step():
    x = torch.tensor([2.0**-10, -(2.0**-10), 1.1 * 2.0**-10, 0.0, -0.0, 1.0])
    assert per_tensor(x, 1.0, E4M3).flushed == 2 / 6
    assert per_tensor(x, 2.0, E4M3).flushed == 0


def test_an_exact_copy_has_an_infinite_ratio_and_its_scale():
    found = per_tensor(torch.tensor([[1.0, -0.25], [0.5, 3.5]]), 4.0, E4M3)
    assert found.snr_db == math.inf and scales_of(found) == (4.0, 4.0)


def test_without_the_source_range_and_scales_remain():
    data = torch.tensor([[0x38, 0xC0]], dtype=torch.uint8)  # 1, -2
    parts = (data, torch.tensor([0.5]), None, KIND_TENSOR, E4M3, 0)
    found = copy_statistics(parts, False, None, torch.Size([1, 2]))
    assert found == CopyStatistics("E4M3/tensor", (1, 2), 1.0, 2.0, 2.0, None, None, None)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize(
    "core", [fp8_core(1), fp8_core(2), nvfp4_core(rht=True)], ids=["blocks", "tiles", "nvfp4"]
)
def test_empty_tensors_have_no_error(core, shape):
    x = torch.empty(shape)
    for parts, is_columnwise in zip(core.quantize(x), (False, True), strict=True):
        found = copy_statistics(parts, is_columnwise, x, x.shape)
        assert (found.amax, found.saturated, found.flushed) == (0.0, 0.0, 0.0)
        assert found.snr_db == math.inf and scales_of(found) == (None, None)


def test_the_error_is_over_finite_values():
    x = torch.tensor([3.0, 4.0, float("inf")])
    y = torch.tensor([3.0, 3.0, 448.0])
    assert error_of(x, y) == pytest.approx((0.2, 10 * math.log10(25)))
    assert error_of(x, x) == (0.0, math.inf)
    assert error_of(x, torch.full((3,), math.inf)) == (math.inf, -math.inf)
    assert error_of(torch.zeros(2), torch.ones(2)) == (math.inf, -math.inf)
    assert error_of(torch.zeros(2), torch.zeros(2)) == (0.0, math.inf)


@pytest.mark.parametrize("position", [0, 2])
def test_a_nan_anywhere_makes_both_errors_nan(position):
    x = torch.tensor([3.0, 4.0, float("inf")])
    spoilt = x.clone()
    spoilt[position] = math.nan
    for source, other in ((x, spoilt), (spoilt, x), (spoilt, spoilt)):
        assert all(math.isnan(value) for value in error_of(source, other))
    assert math.isnan(signal_to_noise_db(spoilt, x))
