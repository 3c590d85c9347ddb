# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Number formats and the small parameter sets that recipes are made of."""

from enum import Enum
from typing import NamedTuple

from pydantic.dataclasses import dataclass

from .field_errors import described_fields


class FormatLimits(NamedTuple):
    """Largest finite magnitudes of the formats of the forward and the backward pass."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Formats of the forward and the backward pass.

    The value is a pair ``(max_fwd, max_bwd)``: the largest finite magnitude of each format
    (OCP 8-bit floating point specification 1.0, table 1; OCP MX specification 1.0, table 5).

    Attributes
    ----------
    E2M1
        FP4 in both passes.
    E4M3
        FP8 with 4 exponent bits in both passes.
    E5M2
        FP8 with 5 exponent bits in both passes.
    HYBRID
        E4M3 in the forward pass, E5M2 for gradients.
    """

    E2M1 = FormatLimits(max_fwd=6, max_bwd=6)
    E4M3 = FormatLimits(max_fwd=448, max_bwd=448)
    E5M2 = FormatLimits(max_fwd=57344, max_bwd=57344)
    HYBRID = FormatLimits(max_fwd=448, max_bwd=57344)


@dataclass(frozen=True)
class MMParams:
    """How one GEMM runs.

    Parameters
    ----------
    use_split_accumulator : bool, default True
        Add partial sums up in FP32 instead of in the tensor core's narrower accumulator. CPU
        GEMMs always accumulate in FP32.
    """

    use_split_accumulator: bool = True

    _described = described_fields()


@dataclass(frozen=True)
class QParams:
    """How one kind of tensor is quantized.

    Parameters
    ----------
    power_2_scale : bool, default False
        Clear the mantissa of the scale (rounds it down to a power of two).
    amax_epsilon : float, default 0.0
        Lower bound of the amax a scale is computed from.
    random_hadamard_transform : bool, default False
        Transform groups of 16 tokens of the columnwise copy first.
    stochastic_rounding : bool, default False
        Round up or down with probability proportional to the distance.
    fp4_2d_quantization : bool, default False
        16x16 tiles instead of 1x16 blocks.
    """

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False

    _described = described_fields()
