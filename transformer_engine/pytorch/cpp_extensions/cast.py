# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Per-tensor FP8 casts and the native quantizers."""

from transformer_engine_torch import (
    Float8CurrentScalingQuantizerCore,
    Float8QuantizerCore,
    compute_amax,
    compute_scale_from_amax,
    dequantize_fp8,
    quantize_fp8,
    transpose_bytes,
)

__all__ = [
    "Float8CurrentScalingQuantizerCore",
    "Float8QuantizerCore",
    "compute_amax",
    "compute_scale_from_amax",
    "dequantize_fp8",
    "quantize_fp8",
    "transpose_bytes",
]
