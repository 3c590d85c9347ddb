# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes: plain configuration objects that say how tensors are quantized.

They are pydantic dataclasses: lossless values are converted, other values raise
``pydantic.ValidationError`` (a ``ValueError``), unknown keywords are ignored.
"""

from .base import Recipe
from .block import Float8BlockScaling, MXFP8BlockScaling
from .custom import CustomRecipe
from .formats import Format, MMParams, QParams
from .nvfp4 import NVFP4BlockScaling
from .per_tensor import DelayedScaling, Float8CurrentScaling

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "Recipe",
]
