# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from typing import Any

import torch

# One quantized copy: (data, scale_inv, amax, kind, dtype, flags).
Copy = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, int, int, int]

class QuantizerCore:
    rowwise_usage: bool
    columnwise_usage: bool
    internal: bool
    optimize_for_gemm: bool
    fp8_dtype: int
    def calibrate(self, tensor: torch.Tensor) -> None: ...

class PythonQuantizerCore(QuantizerCore):
    def __init__(self, quantizer: Any) -> None: ...

class BlockQuantizerCore(QuantizerCore):
    def quantize(self, tensor: torch.Tensor) -> tuple[Copy | None, Copy | None]: ...
    def make_empty(
        self, sizes: list[int], like: torch.Tensor
    ) -> tuple[Copy | None, Copy | None]: ...
    def update(
        self,
        tensor: torch.Tensor,
        rowwise: Copy | None,
        columnwise: Copy | None,
        noop: torch.Tensor | None = None,
    ) -> None: ...
    def copy_format(self, columnwise: bool) -> tuple[int, int, int]: ...
    def shard_rows(self) -> int: ...

class Float8BlockQuantizerCore(BlockQuantizerCore):
    amax_epsilon: float
    force_pow_2_scales: bool
    block_scaling_dim: int
    def __init__(
        self,
        fp8_dtype: int,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float,
        force_pow_2_scales: bool,
        block_scaling_dim: int,
    ) -> None: ...

class MXFP8QuantizerCore(BlockQuantizerCore):
    with_2d_quantization: bool
    def __init__(
        self, fp8_dtype: int, rowwise: bool, columnwise: bool, with_2d_quantization: bool
    ) -> None: ...

HADAMARD_SIGNS: int  # bit i is set where row i of a group of 16 is negated

class NVFP4QuantizerCore(BlockQuantizerCore):
    with_rht: bool
    with_post_rht_amax: bool
    with_2d_quantization: bool
    stochastic_rounding: bool
    row_scaled: bool
    four_over_six: str
    e4m3_max: int
    sign_mask: int
    def __init__(
        self,
        rowwise: bool,
        columnwise: bool,
        with_rht: bool,
        with_post_rht_amax: bool,
        with_2d_quantization: bool,
        stochastic_rounding: bool,
        row_scaled: bool,
        four_over_six: str,
        e4m3_max: int,
        sign_mask: int,
    ) -> None: ...
    def compute_amax(
        self, tensor: torch.Tensor, rowwise: Copy | None, columnwise: Copy | None
    ) -> None: ...
    def cast(self, tensor: torch.Tensor, rowwise: Copy | None, columnwise: Copy | None) -> None: ...

class Float8QuantizerBaseCore(QuantizerCore):
    def quantize(
        self, tensor: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]: ...
    def update(
        self,
        tensor: torch.Tensor,
        data: torch.Tensor | None,
        transpose: torch.Tensor | None,
        scale_inv: torch.Tensor,
        noop: torch.Tensor | None = None,
    ) -> None: ...

class Float8QuantizerCore(Float8QuantizerBaseCore):
    scale: torch.Tensor
    amax: torch.Tensor
    def __init__(
        self,
        scale: torch.Tensor,
        amax: torch.Tensor,
        fp8_dtype: int,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None: ...

class Float8CurrentScalingQuantizerCore(Float8QuantizerBaseCore):
    force_pow_2_scales: bool
    amax_epsilon: float
    def __init__(
        self,
        fp8_dtype: int,
        rowwise: bool = True,
        columnwise: bool = True,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
    ) -> None: ...

def dequantize_copies(
    sizes: list[int], rowwise: Copy | None, columnwise: Copy | None, output_dtype: int
) -> torch.Tensor: ...
def gemm_copies(
    a_sizes: list[int],
    a_rowwise: Copy | None,
    a_columnwise: Copy | None,
    a_contracts_rows: bool,
    b_sizes: list[int],
    b_rowwise: Copy | None,
    b_columnwise: Copy | None,
    b_contracts_rows: bool,
    out_dtype: int,
) -> torch.Tensor: ...
def copy_layout(
    kind: int, dtype: int, flags: int, columnwise: bool, rows: int, cols: int
) -> dict[str, Any]: ...
def quantize_fp8(
    input: torch.Tensor,
    fp8_dtype: int,
    *,
    scale: torch.Tensor | None = None,
    data: torch.Tensor | None = None,
    data_transpose: torch.Tensor | None = None,
    scale_inv: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    noop: torch.Tensor | None = None,
) -> torch.Tensor | None: ...
def dequantize_fp8(
    data: torch.Tensor,
    fp8_dtype: int,
    *,
    scale_inv: torch.Tensor | None = None,
    output_dtype: int = ...,
    output: torch.Tensor | None = None,
) -> torch.Tensor: ...
def transpose_bytes(input: torch.Tensor, *, output: torch.Tensor | None = None) -> torch.Tensor: ...
def compute_amax(input: torch.Tensor, *, amax: torch.Tensor | None = None) -> torch.Tensor: ...
def compute_scale_from_amax(
    amax: torch.Tensor,
    *,
    fp8_max: float,
    epsilon: float = 0.0,
    power_of_two: bool = False,
    scale: torch.Tensor | None = None,
    scale_inv: torch.Tensor | None = None,
) -> torch.Tensor: ...
