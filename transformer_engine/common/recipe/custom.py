# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipe whose quantizers come from a user's factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic.dataclasses import dataclass

from .base import BACKWARD_OVERRIDE_DEFAULT, BackwardOverride, Recipe
from .formats import Format


@dataclass(repr=False)
class CustomRecipe(Recipe):
    """Quantizers made by a user's factory, one call per tensor slot.

    Parameters
    ----------
    qfactory : callable
        ``f(role: QuantizerRole | None) -> Quantizer | QuantizerRequest``. Required.
    fp8_format : Format, default Format.HYBRID
        Format reported to code that asks the recipe.
    fp8_dpa, fp8_mha : bool, default False
        Run attention's products, and keep its boundaries, in FP8.
    backward_override : {None, "high_precision", "dequantized"}, default NVTE_BACKWARD_OVERRIDE
        Run the backward GEMMs on the original operands or on dequantized ones.
    quantization_alignment : int, default 128
        Rows to which padding modules round up, in rows; at least 1.

    Raises
    ------
    pydantic.ValidationError
        For a missing factory or a value outside its range. Unknown keywords are ignored.
    """

    qfactory: Callable[..., Any]
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: BackwardOverride | None = BACKWARD_OVERRIDE_DEFAULT
    quantization_alignment: int = 128

    @classmethod
    def _family(cls) -> str:
        return "custom"

    def __post_init__(self) -> None:
        if self.quantization_alignment < 1:
            raise ValueError(
                f"{type(self).__name__}: quantization_alignment is {self.quantization_alignment}; "
                "at least 1 is required."
            )
