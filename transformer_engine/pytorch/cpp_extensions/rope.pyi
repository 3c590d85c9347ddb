# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from torch import Tensor

def rotate(
    t: Tensor,
    freqs: Tensor,
    format: int,
    is_interleaved: bool,
    start_positions: Tensor | None,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
    /,
) -> Tensor | None: ...
def split_and_rotate(
    qkv: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    q: int,
    k: int,
    v: int,
    format: int,
    is_interleaved: bool,
    start_positions: Tensor | None,
    cp_size: int,
    cp_rank: int,
    /,
) -> tuple[Tensor, Tensor, Tensor] | None: ...
