# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
import torch

class QuantizerCore:
    rowwise_usage: bool
    columnwise_usage: bool
    internal: bool
    optimize_for_gemm: bool
    fp8_dtype: int
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
    def calibrate(self, tensor: torch.Tensor) -> None: ...

class Float8QuantizerCore(QuantizerCore):
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

class Float8CurrentScalingQuantizerCore(QuantizerCore):
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
