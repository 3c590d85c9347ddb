# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
import torch
from torch import Tensor

class FusedAttention:
    def __init__(
        self,
        *,
        qkv_format: str,
        scale: float,
        dropout: float,
        left: int,
        right: int,
        is_bottom_right: bool,
        has_lengths: bool,
        has_bias: bool,
        is_deterministic: bool,
    ) -> None: ...
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_q: Tensor | None,
        cu_kv: Tensor | None,
        cu_q_padded: Tensor | None,
        cu_kv_padded: Tensor | None,
        bias: Tensor | None,
        queries: int,
        keys: int,
        /,
    ) -> Tensor | None: ...
    def refusal(
        self, sizes: dict[str, int], dtype: torch.dtype, device_index: int, is_packed: bool
    ) -> str | None: ...
    @property
    def reason(self) -> str: ...

class Float8Attention:
    def __init__(
        self,
        *,
        qkv_format: str,
        scale: float,
        left: int,
        right: int,
        is_bottom_right: bool,
        has_lengths: bool,
        is_deterministic: bool,
        dtype: int,
        out_dtype: int,
        saved_out_dtype: int,
        grad_out_dtype: int,
        grad_dtype: int,
    ) -> None: ...
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_q: Tensor | None,
        cu_kv: Tensor | None,
        descale_q: Tensor,
        descale_k: Tensor,
        descale_v: Tensor,
        scale_s: Tensor,
        descale_s: Tensor,
        scale_o: Tensor | None,
        is_training: bool,
        /,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor] | None: ...
    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        grad_o: Tensor,
        statistics: Tensor,
        cu_q: Tensor | None,
        cu_kv: Tensor | None,
        descale_q: Tensor,
        descale_k: Tensor,
        descale_v: Tensor,
        descale_o: Tensor | None,
        descale_grad_o: Tensor,
        scale_s: Tensor,
        descale_s: Tensor,
        scale_dp: Tensor,
        descale_dp: Tensor,
        scale_dq: Tensor | None,
        scale_dk: Tensor | None,
        scale_dv: Tensor | None,
        /,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | None: ...
    def refusal(
        self, sizes: dict[str, int], device_index: int, is_training: bool
    ) -> str | None: ...
    @property
    def reason(self) -> str: ...

def attend(
    query: Tensor, key: Tensor, value: Tensor, is_sbhd: bool, is_causal: bool, scale: float, /
) -> Tensor | None: ...
def split_heads(
    mixed: Tensor, groups: int, size: int, is_interleaved: bool, /, *parts: int
) -> tuple[Tensor, ...] | None: ...
