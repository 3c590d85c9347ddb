# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipe whose quantizers come from a user's factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from .base import BACKWARD_OVERRIDE_DEFAULT, BackwardOverride, Recipe, check_at_least_1
from .field_errors import described_fields
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

    _described = described_fields()

    @classmethod
    def _family(cls) -> str:
        return "custom"

    @model_validator(mode="before")
    @classmethod
    def _check_presence(cls, given: Any) -> Any:
        if (
            isinstance(given, ArgsKwargs)
            and not given.args
            and "qfactory" not in (given.kwargs or {})
        ):
            raise ValueError(
                f"{cls.__name__}: qfactory is missing; a callable is required. Pass the function "
                "that makes a quantizer for a role."
            )
        return given

    def __post_init__(self) -> None:
        check_at_least_1(self, "quantization_alignment")
