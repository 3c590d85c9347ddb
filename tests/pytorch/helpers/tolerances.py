# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Error bounds computed from the formats, lengths and norms of a computation.

All bounds are elementwise float64 tensors of absolute errors. Source of the summation bounds:
Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 2.2 and 3.1:
a sum of k products in a format of unit roundoff u, in any order, is off by at most
gamma_k = k u / (1 - k u) times the sum of the magnitudes.
"""

import math

import torch

from .devices import TEST_DEVICE
from .formats import FORMATS, FloatFormat

# Products run on tensor cores, by cuBLASLt.
ON_TENSOR_CORES = TEST_DEVICE.startswith("cuda")


def format_of(dtype: torch.dtype | FloatFormat) -> FloatFormat:
    """The FloatFormat of a torch dtype."""
    return dtype if isinstance(dtype, FloatFormat) else FORMATS[dtype]


def rounding_bound(exact: torch.Tensor, dtype: torch.dtype | FloatFormat) -> torch.Tensor:
    """Largest error of rounding exact values once, to nearest, into a format (no saturation)."""
    fmt = format_of(dtype)
    magnitude = exact.double().abs()
    return torch.maximum(
        magnitude * fmt.unit_roundoff,
        torch.full_like(magnitude, fmt.smallest_step / 2),
    )


def gamma(terms: int, dtype: torch.dtype | FloatFormat) -> float:
    """Relative error bound of a chain of roundings, one per term."""
    product = terms * format_of(dtype).unit_roundoff
    if product >= 1:
        raise ValueError(f"gamma: terms is {terms}; the bound is meaningless in this format.")
    return product / (1 - product)


def tensor_core_error(magnitudes: torch.Tensor, terms: int) -> torch.Tensor:
    """What the sum of the products of two FP8 operands loses on tensor cores; nothing elsewhere.

    Those of compute capability 8.9 and 9.0 add up to 32 products to the sum so far as fixed-point
    numbers, cut off 13 bits below the largest of them, and so is the result (Khattak and Mikaitis,
    Accurate Models of NVIDIA Tensor Cores, 2025). The largest is at most the sum of the magnitudes.
    """
    instructions = math.ceil(terms / 32) if ON_TENSOR_CORES else 0
    return instructions * 34 * 2.0**-13 * magnitudes


def matmul_bound(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    output: torch.dtype,
    accumulation: torch.dtype = torch.float32,
    extra_terms: int = 0,
    is_fp8: bool = False,
) -> torch.Tensor:
    """Largest error of a [m, k] times b [k, n], accumulated in one format, rounded once to another.

    Parameters
    ----------
    a, b : torch.Tensor
        The operands exactly as the computation sees them (dequantized, if they were quantized).
    output, accumulation : torch.dtype
        Format of the result and of the running sum.
    extra_terms : int, default 0
        Further roundings on the way, for example one each for a scale and a bias.
    is_fp8 : bool, default False
        Whether both operands are FP8, which tensor cores add less precisely.
    """
    a64, b64 = a.double(), b.double()
    magnitudes = a64.abs() @ b64.abs()
    accumulated = gamma(a64.shape[-1] + extra_terms + 1, accumulation) * magnitudes
    if is_fp8:
        accumulated = accumulated + tensor_core_error(magnitudes, a64.shape[-1])
    return accumulated + rounding_bound((a64 @ b64).abs() + accumulated, output)


def sum_bound(
    terms: torch.Tensor, dim: int, *, output: torch.dtype, accumulation: torch.dtype = torch.float32
) -> torch.Tensor:
    """Largest error of a sum over one axis, accumulated in one format, rounded once to another."""
    terms64 = terms.double()
    accumulated = gamma(terms.shape[dim] + 1, accumulation) * terms64.abs().sum(dim)
    return accumulated + rounding_bound(terms64.sum(dim).abs() + accumulated, output)


def block_scale(amax: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Largest powers of two that keep magnitudes up to `amax` in range."""
    return torch.exp2(torch.floor(torch.log2(fmt.max_value / amax.double())))


def rescaled_matmul_bound(a: torch.Tensor, b: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """How far a [m, k] times b [k, n] moves when blocks of a's rows are cut otherwise along k.

    Values of `a` that are normal numbers under both scales, powers of two, do not move. Another is
    off by half a smallest step of its scale on either side, together by one of the larger step,
    which is that of the row's amax. The operands may be those before quantization: it makes them
    larger by a unit roundoff at most, and what they were computed from by as much.
    """
    a64, b64 = a.double().abs(), b.double().abs()
    step = fmt.smallest_step / block_scale(a64.amax(1, keepdim=True), fmt)
    # A scale that is off by the roundings of the amax's own operands may be the next smaller one.
    return 2 * step * b64.sum(0) * (1 + fmt.unit_roundoff) ** 2


def assert_within(
    actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float, name: str = "result"
) -> None:
    """Fail unless every element is within its bound; say which is worst and how many are outside.

    Infinities must agree exactly; NaN agrees with NaN.
    """
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape} != {expected.shape}"
    actual64, expected64 = actual.detach().double().cpu(), expected.detach().double().cpu()
    limit = torch.as_tensor(bound, dtype=torch.float64).cpu().expand_as(expected64)
    same = (actual64 == expected64) | (actual64.isnan() & expected64.isnan())
    error = torch.where(same, 0.0, (actual64 - expected64).abs())
    outside = ~(same | (error <= limit))  # so that a NaN error counts as outside
    if not outside.any():
        return
    excess = torch.where(outside, (error / limit).nan_to_num(nan=float("inf")), 0.0)
    worst = int(excess.argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), expected64.shape))
    raise AssertionError(
        f"{name}: {int(outside.sum())} of {outside.numel()} elements outside their bound; worst at "
        f"{where}: actual {actual64.flatten()[worst]:.9g}, expected "
        f"{expected64.flatten()[worst]:.9g}, bound {limit.flatten()[worst]:.3g}"
    )


def assert_identical(actual: torch.Tensor, expected: torch.Tensor, name: str = "result") -> None:
    """Fail unless both have the same dtype, shape and bits (NaN payloads aside)."""
    assert actual.dtype == expected.dtype, f"{name}: dtype {actual.dtype} != {expected.dtype}"
    assert_within(actual, expected, 0.0, name)
    both = (actual.detach().cpu(), expected.detach().cpu())
    if both[0].is_floating_point():
        signs = [value.signbit() | value.isnan() for value in both]
        assert torch.equal(*signs), f"{name}: zeros differ in sign"
