# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from torch import Tensor

def attend(
    query: Tensor, key: Tensor, value: Tensor, is_sbhd: bool, is_causal: bool, scale: float, /
) -> Tensor | None: ...
def split_heads(
    mixed: Tensor, groups: int, size: int, is_interleaved: bool, /, *parts: int
) -> tuple[Tensor, ...] | None: ...
