# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Casts and the native quantizers."""

from transformer_engine_torch import (
    HADAMARD_SIGNS,
    Float8BlockQuantizerCore,
    Float8CurrentScalingQuantizerCore,
    Float8QuantizerCore,
    MXFP8QuantizerCore,
    NVFP4QuantizerCore,
    PythonQuantizerCore,
    compute_amax,
    compute_scale_from_amax,
    copy_layout,
    dequantize_copies,
    dequantize_fp8,
    gemm_copies,
    quantize_fp8,
    transpose_bytes,
)

__all__ = [
    "HADAMARD_SIGNS",
    "Float8BlockQuantizerCore",
    "Float8CurrentScalingQuantizerCore",
    "Float8QuantizerCore",
    "MXFP8QuantizerCore",
    "NVFP4QuantizerCore",
    "PythonQuantizerCore",
    "compute_amax",
    "compute_scale_from_amax",
    "copy_layout",
    "dequantize_copies",
    "dequantize_fp8",
    "gemm_copies",
    "quantize_fp8",
    "transpose_bytes",
]
