# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rank and size of process groups, remembered; torch's collectives by their present names."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.distributed import ProcessGroup, distributed_c10d

# torch takes about 1 us to answer, several times in every forward pass. Keyed by the group object
# itself: a group that is destroyed and made again is a new object with new numbers.
_rank_and_size: weakref.WeakKeyDictionary[ProcessGroup, tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)

# torch 2.13 renamed these two; the old names warn.
_c10d: Any = torch.distributed
all_gather_single = getattr(_c10d, "all_gather_single", None) or _c10d.all_gather_into_tensor
reduce_scatter_single = getattr(_c10d, "reduce_scatter_single", None) or _c10d.reduce_scatter_tensor


def is_distributed_ready() -> bool:
    """Whether torch.distributed is compiled in and initialised."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _lookup(group: ProcessGroup | None) -> tuple[int, int]:
    """(rank, size) of a group, or of the default group; (0, 1) without torch.distributed."""
    default = distributed_c10d.GroupMember.WORLD
    if default is None:
        return (0, 1)
    actual = default if group is None else group
    # A destroyed group may live on in a user's variable: torch says what it wants to then.
    if actual in distributed_c10d._world.pg_map:
        known = _rank_and_size.get(actual)
        if known is None:
            known = (torch.distributed.get_rank(actual), torch.distributed.get_world_size(actual))
            _rank_and_size[actual] = known
        return known
    return (torch.distributed.get_rank(actual), torch.distributed.get_world_size(actual))


def get_distributed_rank(group: ProcessGroup | None = None) -> int:
    """Rank of this process in a group (default: all processes); 0 without torch.distributed.

    Parameters
    ----------
    group : ProcessGroup, optional
        Remembered per group object.
    """
    return _lookup(group)[0]


def get_distributed_world_size(group: ProcessGroup | None = None) -> int:
    """Number of processes in a group (default: all); 1 without torch.distributed.

    Parameters
    ----------
    group : ProcessGroup, optional
        Remembered per group object.
    """
    return _lookup(group)[1]
