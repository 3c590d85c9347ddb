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

def attend(
    query: Tensor, key: Tensor, value: Tensor, is_sbhd: bool, is_causal: bool, scale: float, /
) -> Tensor | None: ...
def split_heads(
    mixed: Tensor, groups: int, size: int, is_interleaved: bool, /, *parts: int
) -> tuple[Tensor, ...] | None: ...
