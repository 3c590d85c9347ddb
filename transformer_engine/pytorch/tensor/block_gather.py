# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gathering the rows of several ranks as data and scales of blocks.

A copy is gathered as it is where the ranks' blocks are blocks of the whole: always along the rows,
along the columns if a rank's rows are whole blocks. Buffers in which the rows lie along axis 0 are
gathered in place, scales without the padding of their rows; of the others, the transposes are
gathered and put into place when they have arrived.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .storage.block_scaled_storage import (
    BlockScaledTensorStorage,
    Copy,
    copy_layout,
    matrix_shape,
)


class Placement(NamedTuple):
    """A transpose that was gathered, and the part of a buffer it belongs into."""

    arrived: torch.Tensor
    target: torch.Tensor

    def place(self) -> None:
        """Fill the buffer."""
        self.target.copy_(self.arrived.t())


def has_whole_blocks(shard: Any, rows: int) -> bool:
    """Whether the blocks of all ranks' shards are those of the whole: `rows` share a scale."""
    if shard.dim() < 2 or shard.numel() == 0:
        return False  # the only axis is the one that blocks lie along
    return matrix_shape(shard.shape)[0] % rows == 0


def gather_plan(
    shard: BlockScaledTensorStorage, whole: BlockScaledTensorStorage, columnwise: bool, ranks: int
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[Placement]]:
    """The (part, whole) pairs to gather of one copy, and what is to be done afterwards."""
    source, target = shard._copy(columnwise), whole._copy(columnwise)
    assert source is not None and target is not None, "the wanted copies are there"
    layout = copy_layout(source[3:], columnwise, shard._shape)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    placements: list[Placement] = []
    buffers = (
        (source[0], target[0], layout["is_transposed"], None),
        (source[1], target[1], layout["row_scales_dim"] == 1, layout["row_scales"]),
    )
    for part, everything, is_along_columns, count in buffers:
        assert part is not None and everything is not None
        if not is_along_columns:
            used = part.shape[0] if count is None else count
            pairs.append((part[:used].contiguous(), everything[: ranks * used]))
            continue
        used = part.shape[1] if count is None else count
        arrived = part.new_empty(ranks * used, part.shape[0])
        pairs.append((part[:, :used].t().contiguous(), arrived))
        placements.append(Placement(arrived, everything[:, : ranks * used]))
    pairs += _amax_pair(source, target)
    # All of them as bytes: gloo's coalesced gathers take one dtype.
    return [(_bytes_of(part), _bytes_of(everything)) for part, everything in pairs], placements


def _bytes_of(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.view(-1).view(torch.uint8)


def _amax_pair(source: Copy, target: Copy) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """An amax per row is gathered; that of the tensor is the same on all ranks."""
    part, everything = source[2], target[2]
    if part is None or everything is None:
        return []
    if part.shape != everything.shape:
        return [(part, everything)]
    everything.copy_(part)
    return []
