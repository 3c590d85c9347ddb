# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""InferenceParams: importable, not available in this version."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["InferenceParams"]


class InferenceParams:
    """State of a key-value cache; not in this version.

    Parameters
    ----------
    max_batch_size, max_sequence_length : int
        Sequences, and tokens of each, that the cache can hold.
    num_heads_kv, head_dim_k, head_dim_v : int, optional
        Key and value heads and their sizes; `head_dim_v` is `head_dim_k` when None.
    dtype : torch.dtype, optional
        Of keys and values.
    is_paged : bool, default False
        Keep them in pages instead of one block per sequence.
    total_num_pages, page_size : int, optional
        Number of pages, and tokens of each, of a paged cache.
    max_ctx_len : int, optional
        Longest prompt, in tokens.
    qkv_format : {"bshd", "sbhd", "thd"}
        Format of the tensors given to attention.
    custom_cache_manager : object, optional
        In place of the cache's own manager.

    Raises
    ------
    NotImplementedError
        When constructed.
    """

    def __init__(  # noqa: PLR0913 - public signature
        self,
        max_batch_size: int,
        max_sequence_length: int,
        num_heads_kv: int | None = None,
        head_dim_k: int | None = None,
        dtype: torch.dtype | None = None,
        head_dim_v: int | None = None,
        is_paged: bool = False,
        total_num_pages: int | None = None,
        page_size: int | None = None,
        max_ctx_len: int | None = None,
        qkv_format: str = "bshd",
        custom_cache_manager: Any = None,
    ) -> None:
        raise NotImplementedError(
            f"InferenceParams: a cache for max_batch_size={max_batch_size} and "
            f"max_sequence_length={max_sequence_length} is asked for; this version has no "
            "key-value cache. Pass the whole sequence, or keep keys and values yourself and use "
            "attn_mask_type='causal_bottom_right'."
        )
