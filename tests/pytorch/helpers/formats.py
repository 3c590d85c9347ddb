# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Number formats written out from their standards, independent of the library.

Sources: IEEE 754-2019 (binary16, binary32, binary64), bfloat16 as binary32 cut to 8 bits of
precision, OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2).
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format.

    Attributes
    ----------
    mantissa_bits : int
        Stored fraction bits, without the implicit one.
    min_exponent : int
        Exponent of the smallest normal number.
    max_value : float
        Largest finite magnitude.
    """

    mantissa_bits: int
    min_exponent: int
    max_value: float

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest in the normal range."""
        return self.epsilon / 2

    @property
    def smallest_step(self) -> float:
        """Distance between neighbours in the subnormal range."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)


E4M3 = FloatFormat(mantissa_bits=3, min_exponent=-6, max_value=448.0)
E5M2 = FloatFormat(mantissa_bits=2, min_exponent=-14, max_value=57344.0)
FORMATS = {
    torch.float64: FloatFormat(52, -1022, torch.finfo(torch.float64).max),
    torch.float32: FloatFormat(23, -126, torch.finfo(torch.float32).max),
    torch.bfloat16: FloatFormat(7, -126, torch.finfo(torch.bfloat16).max),
    torch.float16: FloatFormat(10, -14, 65504.0),
    torch.float8_e4m3fn: E4M3,
    torch.float8_e5m2: E5M2,
}


def decode_table(fmt: FloatFormat) -> torch.Tensor:
    """Values of all 256 codes of E4M3 or E5M2, float64 [256], from the OCP definition."""
    exponent_bits = 7 - fmt.mantissa_bits
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(256):
        sign = -1.0 if code >= 128 else 1.0
        exponent = (code >> fmt.mantissa_bits) & (2**exponent_bits - 1)
        fraction = (code & (2**fmt.mantissa_bits - 1)) * fmt.epsilon
        if exponent == 0:
            magnitude = fraction * 2.0 ** (1 - bias)
        else:
            magnitude = (1 + fraction) * 2.0 ** (exponent - bias)
        if magnitude > fmt.max_value:  # the codes above the largest number: E5M2's Inf, then NaN
            is_infinity = fmt is E5M2 and fraction == 0
            magnitude = float("inf") if is_infinity else float("nan")
        values.append(sign * magnitude)
    return torch.tensor(values, dtype=torch.float64)


def encode_reference(values: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Codes nearest to float64 values, uint8: ties to the even code, saturating, sign of 0 kept.

    Parameters
    ----------
    values : torch.Tensor
        Finite or infinite float64 values; NaN has no single code and is refused.
    fmt : FloatFormat
        E4M3 or E5M2.
    """
    if values.isnan().any():
        raise ValueError("encode_reference: values hold NaN; only its sign bit would be defined.")
    table = decode_table(fmt)[:128]
    magnitudes = table[table.isfinite()]  # ascending: code i has the value magnitudes[i]
    clamped = values.abs().clamp(max=fmt.max_value)
    upper = torch.searchsorted(magnitudes, clamped).clamp(max=len(magnitudes) - 1)
    lower = (upper - 1).clamp(min=0)
    below, above = clamped - magnitudes[lower], magnitudes[upper] - clamped
    takes_lower = (below < above) | ((below == above) & (lower % 2 == 0))
    codes = torch.where(takes_lower, lower, upper)
    return (codes + 128 * values.signbit()).to(torch.uint8)
