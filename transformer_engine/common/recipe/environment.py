# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Environment variables that give recipes their defaults, read once, at import."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecipeVariable:
    """One variable: its name, its default text, the texts it accepts (none: any), its effect."""

    name: str
    default: str
    accepted: tuple[str, ...]
    effect: str


_SWITCH = ("0", "1")
_FOUR_OVER_SIX = ("none", "weights", "activations", "all")

VARIABLES = (
    RecipeVariable(
        "NVTE_BACKWARD_OVERRIDE",
        "",
        ("", "high_precision", "dequantized"),
        "default of every recipe's backward_override; empty means None",
    ),
    RecipeVariable(
        "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES",
        "0",
        _SWITCH,
        "Float8CurrentScaling rounds its scales down to powers of two",
    ),
    RecipeVariable(
        "NVTE_FP8_BLOCK_SCALING_FP32_SCALES",
        "0",
        _SWITCH,
        "Float8BlockScaling keeps full FP32 scales instead of powers of two",
    ),
    RecipeVariable("NVTE_NVFP4_DISABLE_RHT", "0", _SWITCH, "NVFP4 without Hadamard transform"),
    RecipeVariable(
        "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING",
        "0",
        _SWITCH,
        "NVFP4 gradients round to nearest even",
    ),
    RecipeVariable(
        "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
        "0",
        _SWITCH,
        "NVFP4 weights use 1x16 blocks instead of 16x16 tiles",
    ),
    RecipeVariable(
        "NVTE_NVFP4_ROW_SCALED_ACTIVATION",
        "0",
        _SWITCH,
        "NVFP4 forward activations with one global scale per row",
    ),
    RecipeVariable(
        "NVTE_NVFP4_4OVER6", "none", _FOUR_OVER_SIX, "tensors whose blocks may map amax to 4"
    ),
    RecipeVariable(
        "NVTE_NVFP4_4OVER6_E4M3_USE_256",
        "all",
        _FOUR_OVER_SIX,
        "tensors whose block scales are bounded by 256 instead of 448",
    ),
    RecipeVariable(
        "NVTE_NVFP4_4OVER6_ERR_MODE",
        "MAE",
        ("MAE", "MSE", "mae", "mse"),
        "error measure that decides between 4 and 6",
    ),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


def read_text(name: str) -> str:
    """Text of a variable of the table; its default when it is not set.

    Raises
    ------
    ImportError
        If the variable holds a text that the table does not list. These variables are read while
        the package is being imported, and importers handle ImportError only.
    """
    variable = _BY_NAME[name]
    text = os.environ.get(name, variable.default)
    if text not in variable.accepted:
        accepted = ", ".join(repr(choice) for choice in variable.accepted)
        raise ImportError(
            f"transformer_engine.common.recipe: environment variable {name} is {text!r}; "
            f"one of {accepted} is required. Change or unset it."
        )
    return text


def read_switch(name: str) -> bool:
    """Whether a 0/1 variable of the table is 1."""
    return read_text(name) == "1"
