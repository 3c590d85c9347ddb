# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Deprecated import path of transformer_engine.pytorch.quantization."""

import warnings

from .quantization import (
    DelayedScalingRequest,
    FP8GlobalStateManager,
    QuantizerRequest,
    QuantizerRole,
    RecipeState,
    autocast,
    check_recipe_support,
    fp8_autocast,
    fp8_model_init,
    get_align_size_for_quantization,
    get_default_recipe,
    get_fp4_te_dtype,
    get_fp8_max,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
    quantized_model_init,
)

__all__ = [
    "DelayedScalingRequest",
    "FP8GlobalStateManager",
    "QuantizerRequest",
    "QuantizerRole",
    "RecipeState",
    "autocast",
    "check_fp8_block_scaling_support",
    "check_fp8_support",
    "check_mxfp8_support",
    "check_nvfp4_support",
    "check_recipe_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_align_size_for_quantization",
    "get_default_recipe",
    "get_fp4_te_dtype",
    "get_fp8_max",
    "get_fp8_te_dtype",
    "get_fp8_torch_dtype",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
]

# Each gives (available, reason).
check_fp8_support = FP8GlobalStateManager.is_fp8_available
check_mxfp8_support = FP8GlobalStateManager.is_mxfp8_available
check_nvfp4_support = FP8GlobalStateManager.is_nvfp4_available
check_fp8_block_scaling_support = FP8GlobalStateManager.is_fp8_block_scaling_available

warnings.warn(
    "transformer_engine.pytorch.fp8 is deprecated; import from "
    "transformer_engine.pytorch.quantization.",
    DeprecationWarning,
    stacklevel=2,
)
