# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP4 recipe: 16-wide blocks with E4M3 scales under one FP32 scale per tensor."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from ..environment import read_switch, read_text
from .base import (
    BACKWARD_OVERRIDE_DEFAULT,
    BackwardOverride,
    DerivedParams,
    Recipe,
    check_formats,
)
from .field_errors import described_fields
from .formats import Format, QParams

_TensorSet = Literal["none", "weights", "activations", "all"]

_DISABLE_RHT = read_switch("NVTE_NVFP4_DISABLE_RHT")
_DISABLE_STOCHASTIC_ROUNDING = read_switch("NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING")
_DISABLE_2D = read_switch("NVTE_NVFP4_DISABLE_2D_QUANTIZATION")
_ROW_SCALED = read_switch("NVTE_NVFP4_ROW_SCALED_ACTIVATION")
_FOUR_OVER_SIX: _TensorSet = read_text("NVTE_NVFP4_4OVER6")  # type: ignore[assignment]
_USE_256: _TensorSet = read_text("NVTE_NVFP4_4OVER6_E4M3_USE_256")  # type: ignore[assignment]
_ERR_MODE: Literal["MAE", "MSE"] = read_text(  # type: ignore[assignment]
    "NVTE_NVFP4_4OVER6_ERR_MODE"
).upper()
_FORMATS = {"fp4_format": (Format.E2M1,), "fp8_format": (Format.E4M3,)}


def _input_params(disable_rht: bool) -> QParams:
    return QParams(random_hadamard_transform=not disable_rht)


def _weight_params(disable_2d: bool) -> QParams:
    return QParams(fp4_2d_quantization=not disable_2d)


def _grad_params(disable_rht: bool, disable_stochastic_rounding: bool) -> QParams:
    return QParams(
        random_hadamard_transform=not disable_rht,
        stochastic_rounding=not disable_stochastic_rounding,
    )


@dataclass(repr=False)
class NVFP4BlockScaling(Recipe):
    """NVFP4: E2M1 values, an E4M3 scale per 16 elements, an FP32 scale per tensor.

    Parameters
    ----------
    disable_rht : bool, default NVTE_NVFP4_DISABLE_RHT
        No Hadamard transform of the columnwise copies of activations and gradients.
    disable_stochastic_rounding : bool, default NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING
        Round gradients to nearest even.
    disable_2d_quantization : bool, default NVTE_NVFP4_DISABLE_2D_QUANTIZATION
        1x16 blocks instead of 16x16 tiles for weights.
    row_scaled_activation : bool, default NVTE_NVFP4_ROW_SCALED_ACTIVATION
        One FP32 scale per row of forward activations.
    nvfp4_4over6 : {"none", "weights", "activations", "all"}, default NVTE_NVFP4_4OVER6
        Tensors whose blocks choose between mapping their amax to 6 or to 4.
    nvfp4_4over6_e4m3_use_256 : as above, default NVTE_NVFP4_4OVER6_E4M3_USE_256
        Tensors of those whose block scales are bounded by 256 instead of 448.
    nvfp4_4over6_err_mode : {"MAE", "MSE"}, default NVTE_NVFP4_4OVER6_ERR_MODE
        Error measure of that choice.
    fp4_format, fp8_format : Format
        Must be E2M1 and E4M3.
    fp8_dpa, fp8_mha : bool, default False
        Run attention's products, and keep its boundaries, in FP8.
    backward_override : {None, "high_precision", "dequantized"}, default NVTE_BACKWARD_OVERRIDE
        Run the backward GEMMs on the original operands or on dequantized ones.

    Attributes
    ----------
    fp4_quant_fwd_inp, fp4_quant_fwd_weight, fp4_quant_bwd_grad : QParams
        Not fields. Follow the three ``disable_*`` switches; may be replaced on an instance.

    Raises
    ------
    pydantic.ValidationError
        For a value of the wrong type or outside its range. Unknown keywords are ignored.
    """

    disable_rht: bool = _DISABLE_RHT
    disable_stochastic_rounding: bool = _DISABLE_STOCHASTIC_ROUNDING
    disable_2d_quantization: bool = _DISABLE_2D
    row_scaled_activation: bool = _ROW_SCALED
    nvfp4_4over6: _TensorSet = _FOUR_OVER_SIX
    nvfp4_4over6_e4m3_use_256: _TensorSet = _USE_256
    nvfp4_4over6_err_mode: Literal["MAE", "MSE"] = _ERR_MODE
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: BackwardOverride | None = BACKWARD_OVERRIDE_DEFAULT

    _described = described_fields()
    _formats = _FORMATS

    @staticmethod
    def _build_input_params(recipe: NVFP4BlockScaling) -> QParams:
        return _input_params(recipe.disable_rht)

    @staticmethod
    def _build_weight_params(recipe: NVFP4BlockScaling) -> QParams:
        return _weight_params(recipe.disable_2d_quantization)

    @staticmethod
    def _build_grad_params(recipe: NVFP4BlockScaling) -> QParams:
        return _grad_params(recipe.disable_rht, recipe.disable_stochastic_rounding)

    fp4_quant_fwd_inp = DerivedParams(_input_params(_DISABLE_RHT), _build_input_params)
    fp4_quant_fwd_weight = DerivedParams(_weight_params(_DISABLE_2D), _build_weight_params)
    fp4_quant_bwd_grad = DerivedParams(
        _grad_params(_DISABLE_RHT, _DISABLE_STOCHASTIC_ROUNDING), _build_grad_params
    )

    @classmethod
    def _family(cls) -> str:
        return "nvfp4"

    def __post_init__(self) -> None:
        check_formats(self)
