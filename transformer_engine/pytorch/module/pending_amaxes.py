# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Amaxes of sharded weights that no reduction has seen yet, when a checkpoint is written.

An optimizer writes into quantized weights between two regions. Under delayed scaling the write
records the largest magnitude in row 0 of the history, which the next region reduces over its group.
Where fully_shard divides a weight, each rank writes its part: until that reduction the ranks know
different maxima, and a checkpoint keeps those of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..rank_errors import naming
from ..tensor import QuantizedTensor


def _sharding_groups(parameter: Any) -> list[Any]:
    """Process groups over which the parts of a quantized DTensor lie; none for other tensors."""
    # By what it has: importing DTensor takes longer than everything else in this package.
    if not isinstance(getattr(parameter, "_local_tensor", None), QuantizedTensor):
        return []
    mesh = parameter.device_mesh
    return [
        mesh.get_group(dim)
        for dim, placement in enumerate(parameter.placements)
        if not placement.is_replicate() and mesh.size(dim) > 1
    ]


def with_pending_amaxes(
    owner: str, parameters: Iterable[Any], history: torch.Tensor, weight_slots: slice
) -> torch.Tensor:
    """The history [length, n] as one process with the whole weights would have it.

    Where a quantized parameter is sharded, this is a collective call of all ranks that share it.
    """
    groups = next((found for p in parameters if (found := _sharding_groups(p))), [])
    if not groups:
        return history
    history = history.clone()  # the state itself is for the next reduction to change
    pending = history[0, weight_slots].contiguous()
    for group in groups:
        with naming(owner, "all-reduce of amaxes of sharded weights", group):
            torch.distributed.all_reduce(pending, op=torch.distributed.ReduceOp.MAX, group=group)
    history[0, weight_slots] = pending
    return history
