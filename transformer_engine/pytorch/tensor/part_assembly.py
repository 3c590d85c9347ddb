# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A per-tensor FP8 tensor that is read from a file in parts.

A tensor has one scale. A part of another scale that is written into it is rounded once more, under
the tensor's own. Where the parts of a file come one after the other, as loaders of sharded
checkpoints read them, and all have one scale, the bytes of the file are kept beside it until they
are complete; then they and their scale take the tensor's place, exactly. Zeros are the same under
every scale, so nothing is missing where the tensor has zeros.
"""

from __future__ import annotations

import torch


class ArrivingParts:
    """Bytes under one scale, of which some are there.

    Parameters
    ----------
    whole : torch.Tensor
        uint8: the bytes that they are to replace; parts are views of them.
    scale_inv : torch.Tensor
        float32 [1], of the parts.
    """

    def __init__(self, whole: torch.Tensor, scale_inv: torch.Tensor) -> None:
        self.scale_inv = scale_inv.clone()
        self._bytes = torch.zeros(span_of(whole), dtype=torch.uint8, device=whole.device)
        self._is_there = torch.zeros_like(self._bytes, dtype=torch.bool)

    def put(self, whole: torch.Tensor, part: torch.Tensor, data: torch.Tensor) -> None:
        """Add the bytes of a part, which lies in the whole where its strides say."""
        place = (part.shape, part.stride(), part.storage_offset() - whole.storage_offset())
        self._bytes.as_strided(*place).copy_(data)
        self._is_there.as_strided(*place).fill_(True)

    def complete(self, whole: torch.Tensor) -> torch.Tensor | None:
        """The bytes in the shape of the whole; None while some are missing.

        Zeros of the whole are not missed, since they are zeros under every scale: so are the rows
        by which fully_shard fills up the last ranks' parts.
        """
        place = (whole.shape, whole.stride(), 0)
        is_there = self._is_there.as_strided(*place)
        if bool((~is_there & (whole.bitwise_and(0x7F) != 0)).any()):
            return None
        return torch.where(is_there, self._bytes.as_strided(*place), whole)


def shares_bytes(tensor: torch.Tensor) -> bool:
    """Whether an expanded tensor shows some bytes several times."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in sizes)


def span_of(tensor: torch.Tensor) -> int:
    """Number of elements of memory from the first to the last that a tensor reaches."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
