# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""PyTorch layers, number formats and recipes."""

from transformer_engine.common import load_framework_extension

load_framework_extension("torch")  # the modules below use the native one

from . import constants  # noqa: E402  # after the native module, like all below
from .attention import DotProductAttention, InferenceParams, RotaryPositionEmbedding  # noqa: E402
from .constants import DType  # noqa: E402
from .utils import (  # noqa: E402
    deinterleave_glu_tensor,
    get_cudnn_version,
    get_device_compute_capability,
    interleave_glu_tensor,
    is_bf16_available,
)

__all__ = [  # noqa: RUF022  # grouped by subject
    # data types
    "DType",
    "constants",
    # attention
    "DotProductAttention",
    "InferenceParams",
    "RotaryPositionEmbedding",
    # availability
    "get_cudnn_version",
    "get_device_compute_capability",
    "is_bf16_available",
    # GLU helpers
    "deinterleave_glu_tensor",
    "interleave_glu_tensor",
]
