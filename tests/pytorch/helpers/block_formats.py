# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Formats with one scale per block, written out in torch from their rules, independent of the
library: OCP Microscaling Formats 1.0 (E8M0 scales of 32 elements, rounded up), FP8 blocks of 128.

References are of finite inputs. A copy is (data, scales) as stored, without padding of the scales.
"""

import math

import torch

from .formats import FloatFormat, decode_table, encode_reference


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    """float32 [M, K] of a tensor's values."""
    columns = x.shape[-1] if x.dim() else 1
    rows = math.prod(x.shape[:-1])
    return x.float().reshape(rows, columns)


def block_amaxes(matrix: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """max |x| of each block, [ceil(rows / block rows), ceil(cols / block cols)]."""
    rows, cols = matrix.shape
    down, across = -(-rows // block[0]), -(-cols // block[1])
    padded = matrix.new_zeros(down * block[0], across * block[1])
    padded[:rows, :cols] = matrix.abs()
    return padded.view(down, block[0], across, block[1]).amax((1, 3))


def spread(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """The scale of each element of a matrix of some shape."""
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: shape[0], : shape[1]]


def e8m0_round_up(values: torch.Tensor) -> torch.Tensor:
    """uint8 codes of the smallest powers of two that are at least `values`, 2^-127 to 2^127."""
    exponents = torch.frexp(values.double())  # mantissa in [0.5, 1)
    ceiling = torch.where(exponents.mantissa == 0.5, exponents.exponent - 1, exponents.exponent)
    codes = torch.where(values == 0, -127, ceiling).clamp(-127, 127) + 127
    return codes.to(torch.uint8)


def mxfp8_copy(
    x: torch.Tensor, fmt: FloatFormat, *, columnwise: bool, tiles: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data [M, K] and scale codes of one MXFP8 copy."""
    matrix = as_matrix(x)
    block = (32, 32) if tiles else (32, 1) if columnwise else (1, 32)
    amaxes = block_amaxes(matrix, block)
    reciprocal = (1 / torch.tensor(fmt.max_value, dtype=torch.float64)).float()
    codes = e8m0_round_up(amaxes * reciprocal)  # a float32 product
    scales = torch.exp2(codes.double() - 127)
    data = encode_reference(matrix.double() / spread(scales, block, matrix.shape), fmt)
    if tiles:
        rows = 1 if columnwise else 32
        codes = spread(codes, (rows, 33 - rows), torch.Size(tile_scale_shape(matrix, columnwise)))
    return data, codes


def tile_scale_shape(matrix: torch.Tensor, columnwise: bool) -> tuple[int, int]:
    """Shape of the scales of 1 x 32 or 32 x 1 blocks."""
    rows, cols = matrix.shape
    return (-(-rows // 32), cols) if columnwise else (rows, -(-cols // 32))


def mxfp8_values(
    data: torch.Tensor, codes: torch.Tensor, fmt: FloatFormat, *, columnwise: bool
) -> torch.Tensor:
    """float64 [M, K] of a copy."""
    scales = torch.exp2(codes.double() - 127)
    block = (32, 1) if columnwise else (1, 32)
    return decode_table(fmt)[data.long()] * spread(scales, block, data.shape)


def assert_padded(actual: torch.Tensor, expected: torch.Tensor, multiples: tuple[int, int]) -> None:
    """A stored matrix of scales is the expected one, with zeros up to multiples of its sizes."""
    rows, cols = expected.shape
    shape = (-(-rows // multiples[0]) * multiples[0], -(-cols // multiples[1]) * multiples[1])
    assert tuple(actual.shape) == shape
    assert torch.equal(actual[:rows, :cols], expected)
    assert actual[rows:].count_nonzero() == actual[:, cols:].count_nonzero() == 0
