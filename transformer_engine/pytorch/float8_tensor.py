# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Deprecated import path of transformer_engine.pytorch.tensor.float8_tensor."""

import warnings

from .tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    Float8TensorStorage,
)

__all__ = [
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
]

warnings.warn(
    "transformer_engine.pytorch.float8_tensor is deprecated; import from "
    "transformer_engine.pytorch.tensor.float8_tensor.",
    DeprecationWarning,
    stacklevel=2,
)
