# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes with one scale per tensor: delayed and current scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from ..environment import read_switch
from .base import (
    BACKWARD_OVERRIDE_DEFAULT,
    BackwardOverride,
    DerivedParams,
    Recipe,
    check_at_least_1,
    check_formats,
)
from .field_errors import described_fields
from .formats import Format, MMParams, QParams

_POWER_2_SCALES_DEFAULT = read_switch("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")
# Of delayed scaling. fp8_max is 2**8.8 (E4M3) or 2**15.8 (E5M2); the scale and its inverse are
# normal FP32 numbers while 2**-126 <= fp8_max / 2**margin / amax <= 2**126, thus for all
#     2**(15.8 + 64 - 126) <= 2**-46 <= amax <= 2**70 <= 2**(8.8 - 64 + 126)
# with -64 <= margin <= 64. All amaxes of FP16 (2**-24 to 2**16) lie inside.
_MAX_MARGIN = 64
_FORMATS = {"fp8_format": (Format.E4M3, Format.HYBRID)}


@dataclass(repr=False)
class DelayedScaling(Recipe):
    """FP8 with a scale taken from the amaxes of earlier steps.

    A tensor is cast with the stored scale while its amax is recorded in the history. At the end
    of the step ``scale = fp8_max * 2**-margin / amax``, where ``amax`` is taken from the history.

    Parameters
    ----------
    margin : int, default 0
        Headroom in powers of two, -64..64: with these the scale and its inverse are normal FP32
        numbers for all amaxes in ``2**-46 .. 2**70``.
    fp8_format : Format, default Format.HYBRID
        E4M3 or HYBRID.
    amax_history_len : int, default 1024
        Number of steps remembered, at least 1.
    amax_compute_algo : {"max", "most_recent"} or callable, default "max"
        How an amax is taken from the history; a callable is ``f(history) -> amax``.
    scaling_factor_compute_algo : callable, optional
        ``f(amax, scale, fp8_max, recipe) -> scale``, in place of the formula above.
    reduce_amax : bool, default True
        Take the maximum over the amax reduction group at the end of the step.
    fp8_dpa, fp8_mha : bool, default False
        Run attention's products, and keep its boundaries, in FP8.
    backward_override : None
        Must be None: other recipes allow a high-precision backward pass.

    Raises
    ------
    pydantic.ValidationError
        For a value of the wrong type or outside its range. Unknown keywords are ignored.
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: BackwardOverride | None = BACKWARD_OVERRIDE_DEFAULT

    _described = described_fields()
    _formats = _FORMATS

    @classmethod
    def _family(cls) -> str:
        return "delayed"

    def __post_init__(self) -> None:
        check_formats(self)
        check_at_least_1(self, "amax_history_len")
        if not -_MAX_MARGIN <= self.margin <= _MAX_MARGIN:
            raise ValueError(
                f"{type(self).__name__}: margin is {self.margin}; -{_MAX_MARGIN}..{_MAX_MARGIN} is "
                "required, beyond it scales of ordinary tensors leave the range of FP32. The "
                "default is 0."
            )
        if self.backward_override is not None:
            raise ValueError(
                f"{type(self).__name__}: backward_override is {self.backward_override!r}; delayed "
                "scaling allows only None. Use Float8CurrentScaling, or unset "
                "NVTE_BACKWARD_OVERRIDE."
            )


@dataclass(repr=False)
class Float8CurrentScaling(Recipe):
    """FP8 with a scale taken from the amax of the tensor being cast.

    Parameters
    ----------
    use_power_2_scales : bool, default NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES
        Round scales down to powers of two.
    fp8_format : Format, default Format.HYBRID
        E4M3 or HYBRID.
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad : MMParams
        Split accumulation of the three GEMMs; defaults False, True, True.
    fp8_dpa, fp8_mha : bool, default False
        Run attention's products, and keep its boundaries, in FP8.
    backward_override : {None, "high_precision", "dequantized"}, default NVTE_BACKWARD_OVERRIDE
        Run the backward GEMMs on the original operands or on dequantized ones.

    Attributes
    ----------
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad : QParams
        Not fields. Follow ``use_power_2_scales``; may be replaced on the class or an instance.

    Raises
    ------
    pydantic.ValidationError
        For a value of the wrong type or outside its range. Unknown keywords are ignored.
    """

    use_power_2_scales: bool = _POWER_2_SCALES_DEFAULT
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: BackwardOverride | None = BACKWARD_OVERRIDE_DEFAULT

    _described = described_fields()
    _formats = _FORMATS

    @staticmethod
    def _quant_params(recipe: Float8CurrentScaling) -> QParams:
        return QParams(power_2_scale=recipe.use_power_2_scales)

    fp8_quant_fwd_inp = DerivedParams(QParams(_POWER_2_SCALES_DEFAULT), _quant_params)
    fp8_quant_fwd_weight = DerivedParams(QParams(_POWER_2_SCALES_DEFAULT), _quant_params)
    fp8_quant_bwd_grad = DerivedParams(QParams(_POWER_2_SCALES_DEFAULT), _quant_params)

    @classmethod
    def _family(cls) -> str:
        return "float8_current_scaling"

    def __post_init__(self) -> None:
        check_formats(self)
