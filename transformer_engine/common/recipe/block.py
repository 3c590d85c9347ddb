# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 recipes with one scale per block: 32-wide (MXFP8) and 128-wide."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from ..environment import read_switch
from .base import (
    BACKWARD_OVERRIDE_DEFAULT,
    BackwardOverride,
    DerivedParams,
    Recipe,
    check_formats,
)
from .field_errors import default_remedy, described_fields
from .formats import Format, MMParams, QParams

_FP32_SCALES_DEFAULT = read_switch("NVTE_FP8_BLOCK_SCALING_FP32_SCALES")
_FORMATS = {"fp8_format": (Format.E4M3, Format.HYBRID)}


@dataclass(repr=False)
class MXFP8BlockScaling(Recipe):
    """FP8 with an E8M0 scale for every 32 elements along the contraction axis.

    Parameters
    ----------
    margin : int, default 0
        Accepted; without effect: scales are rounded up, and the rule has no place for a margin.
    fp8_format : Format, default Format.E4M3
        E4M3 or HYBRID.
    fp8_dpa, fp8_mha : bool, default False
        Run attention's products, and keep its boundaries, in FP8.
    backward_override : {None, "high_precision", "dequantized"}, default NVTE_BACKWARD_OVERRIDE
        Run the backward GEMMs on the original operands or on dequantized ones.
    enable_2d_quantization : bool, default False
        One scale per 32x32 tile of a weight, shared by both directions.

    Raises
    ------
    pydantic.ValidationError
        For a value of the wrong type or outside its range. Unknown keywords are ignored.
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: BackwardOverride | None = BACKWARD_OVERRIDE_DEFAULT
    enable_2d_quantization: bool = False

    _described = described_fields()
    _formats = _FORMATS

    @classmethod
    def _family(cls) -> str:
        return "mxfp8"

    def __post_init__(self) -> None:
        check_formats(self)


@dataclass(repr=False)
class Float8BlockScaling(Recipe):
    """FP8 with an FP32 scale for every 128 elements or 128x128 tile.

    Parameters
    ----------
    use_f32_scales : bool, default NVTE_FP8_BLOCK_SCALING_FP32_SCALES
        Full FP32 scales instead of powers of two.
    fp8_format : Format, default Format.E4M3
        E4M3 or HYBRID.
    x_block_scaling_dim, w_block_scaling_dim, grad_block_scaling_dim : {1, 2}, defaults 1, 2, 1
        1x128 blocks or 128x128 tiles for inputs, weights and output gradients. The two operands
        of a GEMM may not both be 2-D.
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad : MMParams
        Split accumulation, which must stay on for all three GEMMs.
    fp8_dpa, fp8_mha : bool
        Must be False: attention cannot run in this format.
    backward_override : {None, "high_precision", "dequantized"}, default NVTE_BACKWARD_OVERRIDE
        Run the backward GEMMs on the original operands or on dequantized ones.

    Attributes
    ----------
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad : QParams
        Not fields. Follow ``use_f32_scales``; may be replaced on the class or an instance.

    Raises
    ------
    pydantic.ValidationError
        For a value of the wrong type or outside its range. Unknown keywords are ignored.
    """

    use_f32_scales: bool = _FP32_SCALES_DEFAULT
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: BackwardOverride | None = BACKWARD_OVERRIDE_DEFAULT

    _described = described_fields()
    _formats = _FORMATS

    @staticmethod
    def _quant_params(recipe: Float8BlockScaling) -> QParams:
        return QParams(power_2_scale=not recipe.use_f32_scales)

    fp8_quant_fwd_inp = DerivedParams(QParams(not _FP32_SCALES_DEFAULT), _quant_params)
    fp8_quant_fwd_weight = DerivedParams(QParams(not _FP32_SCALES_DEFAULT), _quant_params)
    fp8_quant_bwd_grad = DerivedParams(QParams(not _FP32_SCALES_DEFAULT), _quant_params)

    @classmethod
    def _family(cls) -> str:
        return "float8_block_scaling"

    def __post_init__(self) -> None:
        check_formats(self)
        self._check_block_dims()
        for name in ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"):
            if not getattr(self, name).use_split_accumulator:
                raise ValueError(
                    f"{type(self).__name__}: {name} has use_split_accumulator False; block-scaled "
                    "GEMMs need it True. Leave the default."
                )
        for name in ("fp8_dpa", "fp8_mha"):
            if getattr(self, name):
                raise ValueError(
                    f"{type(self).__name__}: {name} is True; attention cannot run in block-scaled "
                    "FP8. Leave it False, or use Float8CurrentScaling."
                )

    def _check_block_dims(self) -> None:
        operands = ("x_block_scaling_dim", "w_block_scaling_dim", "grad_block_scaling_dim")
        for name in operands:
            if getattr(self, name) not in (1, 2):
                raise ValueError(
                    f"{type(self).__name__}: {name} is {getattr(self, name)}; 1 or 2 is required. "
                    f"{default_remedy(type(self), name)}"
                )
        for first, second in ((0, 1), (1, 2), (0, 2)):  # fprop, dgrad, wgrad
            names = (operands[first], operands[second])
            if all(getattr(self, name) == 2 for name in names):
                raise ValueError(
                    f"{type(self).__name__}: {names[0]} and {names[1]} are both 2; a GEMM takes "
                    "at most one operand in 2-D blocks. Set one of them to 1."
                )
