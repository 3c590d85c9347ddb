# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Formats with one scale per block, written out in torch from their rules, independent of the
library: OCP Microscaling Formats 1.0 (E8M0 scales of 32 elements, rounded up; E2M1), FP8 blocks of
128, NVFP4 blocks of 16.

References are of finite inputs. A copy is (data, scales) as stored, without padding of the scales.
"""

import math

import torch

from .formats import E4M3, FloatFormat, decode_table, encode_reference


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


def fp8_block_copy(
    x: torch.Tensor,
    fmt: FloatFormat,
    *,
    columnwise: bool,
    tiles: bool,
    power_of_two: bool,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data as stored and scale_inv as stored, of 1 x 128 blocks (transposed) or 128 x 128 tiles."""
    matrix = as_matrix(x).t() if columnwise else as_matrix(x)
    block = (128, 128) if tiles else (1, 128)
    amaxes = block_amaxes(matrix, block).clamp(min=epsilon)
    largest = torch.tensor(torch.finfo(x.dtype).max).float()
    scales = torch.tensor(fmt.max_value, dtype=torch.float32) / amaxes
    scales = torch.where(scales.isinf(), largest, scales)
    scales = torch.where(amaxes == 0, 1.0, scales)
    if power_of_two:
        scales = torch.exp2(torch.frexp(scales).exponent.double() - 1).float()
    product = matrix * spread(scales, block, matrix.shape)  # rounded to float32
    data = encode_reference(product.double().contiguous(), fmt)
    return data, scales.reciprocal() if tiles else scales.reciprocal().t()


def fp8_block_values(
    data: torch.Tensor, scale_inv: torch.Tensor, fmt: FloatFormat, *, columnwise: bool, tiles: bool
) -> torch.Tensor:
    """float64 [M, K] of a copy: float32 products."""
    block, scales = ((128, 128), scale_inv) if tiles else ((1, 128), scale_inv.t())
    values = decode_table(fmt)[data.long()].float() * spread(scales, block, data.shape)
    return (values.t() if columnwise else values).double()


def e2m1_values() -> torch.Tensor:
    """The magnitudes of E2M1, in the order of their codes, on the default device."""
    return torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


HADAMARD_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Codes nearest to finite values, uint8 0..15: ties to the even code, saturating at 6."""
    distances = (values.double().abs().clamp(max=6.0).unsqueeze(-1) - e2m1_values()).abs()
    nearest = distances == distances.amin(-1, keepdim=True)
    # Of two codes at the same distance, the even one.
    preference = nearest.double() * (2 - torch.arange(8) % 2)
    codes = preference.argmax(-1)
    return (codes + 8 * values.signbit()).to(torch.uint8)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """float64 values of codes 0..15."""
    return torch.cat((e2m1_values(), -e2m1_values()))[codes.long()]


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the even column in the low half; rows filled up to 16 with 0."""
    rows, cols = codes.shape
    padded = codes.new_zeros(rows, -(-cols // 16) * 16)
    padded[:, :cols] = codes
    return padded[:, ::2] | (padded[:, 1::2] << 4)


def unpack_nibbles(data: torch.Tensor, cols: int) -> torch.Tensor:
    """The inverse, uint8 [rows, cols]."""
    return torch.stack((data & 15, data >> 4), dim=2).flatten(1)[:, :cols]


def hadamard_transposed(x: torch.Tensor, signs: tuple[int, ...] = HADAMARD_SIGNS) -> torch.Tensor:
    """float64 [K, M rounded up to 16]: groups of 16 rows of x times diag(signs) * H16 / 4."""
    matrix = as_matrix(x).double().t()
    padded = matrix.new_zeros(matrix.shape[0], -(-matrix.shape[1] // 16) * 16)
    padded[:, : matrix.shape[1]] = matrix
    h = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(4):
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    transform = torch.tensor(signs, dtype=torch.float64).diag() @ h / 4
    return (padded.view(matrix.shape[0], -1, 16) @ transform).flatten(1)


def nvfp4_scales(
    block_amaxes_: torch.Tensor, amax: torch.Tensor, e4m3_max: float, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(E4M3 codes d, float32 multipliers e) of blocks; `factor` 1.5 maps block maxima to 4."""
    largest = torch.tensor(torch.finfo(torch.float32).max)
    tensor_scale = torch.where(
        amax > 0, torch.minimum(torch.tensor(6.0 * e4m3_max) / amax, largest), 1.0
    )
    sixth = (1 / torch.tensor(6.0, dtype=torch.float64)).float()
    wanted = block_amaxes_ * (tensor_scale * sixth)
    codes = encode_reference((wanted if factor == 1.0 else wanted * factor).double(), E4M3)
    decoded = decode_table(E4M3)[codes.long()].float()
    return codes, torch.minimum(1 / (decoded * (1 / tensor_scale)), largest)


def nvfp4_copy(
    matrix: torch.Tensor, *, tiles: bool = False, e4m3_max: float = 448.0, mode: str = ""
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [rows, cols], scale codes [rows, cols / 16], amax [1] of a float32 matrix as stored.

    Round to nearest; `mode` is "MAE" or "MSE" for four over six.
    """
    block = (16, 16) if tiles else (1, 16)
    amaxes, amax = block_amaxes(matrix, block), matrix.abs().amax().view(1)
    scales, multipliers = nvfp4_scales(amaxes, amax, e4m3_max)
    codes = encode_e2m1(matrix * spread(multipliers, block, matrix.shape))
    if mode:
        scales4, multipliers4 = nvfp4_scales(amaxes, amax, e4m3_max, 1.5)
        codes4 = encode_e2m1(matrix * spread(multipliers4, block, matrix.shape))
        errors = [
            _block_errors(matrix, c, s, block, torch.tensor(6.0 * e4m3_max) / amax, mode)
            for c, s in ((codes, scales), (codes4, scales4))
        ]
        takes_four = errors[1] < errors[0]
        scales = torch.where(takes_four, scales4, scales)
        codes = torch.where(spread(takes_four, block, matrix.shape), codes4, codes)
    if tiles:
        scales = spread(scales, (16, 1), torch.Size((matrix.shape[0], scales.shape[1])))
    return codes, scales, amax


def _block_errors(
    matrix: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int],
    tensor_scale: torch.Tensor,
    mode: str,
) -> torch.Tensor:
    """Sums over blocks of |q d - x S|, or its square, in float32 by halves."""
    decoded = spread(decode_table(E4M3)[scales.long()].float(), block, matrix.shape)
    errors = (decode_e2m1(codes).float() * decoded - matrix * tensor_scale).abs()
    errors = errors * errors if mode == "MSE" else errors
    rows, cols = errors.shape
    down, across = -(-rows // block[0]), -(-cols // 16)
    padded = errors.new_zeros(down * block[0], across * 16)
    padded[:rows, :cols] = errors
    parts = padded.view(down, block[0], across, 16)
    for axis in (3, 1):
        while parts.shape[axis] > 1:
            first, second = parts.chunk(2, axis)
            parts = first + second
    return parts.view(down, across)


def nvfp4_values(
    codes: torch.Tensor, scales: torch.Tensor, amax: torch.Tensor, e4m3_max: float = 448.0
) -> torch.Tensor:
    """float64 values of a copy as stored, without the rounding of the result."""
    decoded = spread(decode_table(E4M3)[scales.long()], (1, 16), codes.shape)
    return decode_e2m1(codes) * decoded * amax.double() / (6 * e4m3_max)
