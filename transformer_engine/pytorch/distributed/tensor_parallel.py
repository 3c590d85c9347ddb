# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Marks and initialization of tensor-parallel weights; flat shards of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ..rank_errors import naming
from .groups import all_gather_single, get_distributed_rank, get_distributed_world_size

_ATTRIBUTES = ("tensor_model_parallel", "partition_dim", "partition_stride")


def set_tensor_model_parallel_attributes(
    tensor: torch.Tensor, is_parallel: bool, dim: int, stride: int
) -> None:
    """Mark how a parameter is split over the tensor-parallel group.

    Parameters
    ----------
    tensor : torch.Tensor
        Receives ``tensor_model_parallel``, ``partition_dim`` and ``partition_stride``.
    is_parallel : bool
        Whether each rank holds another part.
    dim : int
        Axis of the split.
    stride : int
        Rows (or columns) that stay together.

    Raises
    ------
    RuntimeError
        If one of the attributes is there already.
    """
    for name in _ATTRIBUTES:
        if hasattr(tensor, name):
            raise RuntimeError(
                f"set_tensor_model_parallel_attributes: tensor has {name} = "
                f"{getattr(tensor, name)!r} already; a parameter is marked once only."
            )
    for name, value in zip(_ATTRIBUTES, (is_parallel, dim, stride), strict=True):
        setattr(tensor, name, value)


def initialize_affine_weight(
    weight: torch.Tensor,
    init_method: Callable[[torch.Tensor], Any],
    get_rng_state_tracker: Callable[[], Any] | None,
    partition_dim: int = 0,
    stride: int = 1,
    set_tp_attributes: bool = True,
) -> None:
    """Mark a weight as tensor-parallel and draw its values in place.

    Parameters
    ----------
    weight : torch.Tensor
        This rank's part.
    init_method : callable
        ``f(weight)``, in place.
    get_rng_state_tracker : callable, optional
        Gives the tracker whose default stream to draw from; None draws from the default generator.
    partition_dim, stride, set_tp_attributes
        See `set_tensor_model_parallel_attributes`; the last switches the marking off.
    """
    if set_tp_attributes:
        set_tensor_model_parallel_attributes(weight, True, partition_dim, stride)
    if get_rng_state_tracker is None:
        init_method(weight)
        return
    with get_rng_state_tracker().fork():
        init_method(weight)


initialize_affine_weight_gpu = initialize_affine_weight


def split_tensor_into_1d_equal_chunks(
    tensor: torch.Tensor, tp_group: ProcessGroup | None = None, new_buffer: bool = False
) -> torch.Tensor:
    """This rank's part of a tensor, flat: [numel / ranks].

    Parameters
    ----------
    tensor : torch.Tensor
        Any shape; the number of elements must be a multiple of the number of ranks.
    tp_group : ProcessGroup, optional
        Default: all processes.
    new_buffer : bool, default False
        Copy the part, so that the tensor's memory can be freed.

    Raises
    ------
    ValueError
        If the tensor cannot be split evenly.
    """
    size = get_distributed_world_size(tp_group)
    if tensor.numel() % size:
        raise ValueError(
            f"split_tensor_into_1d_equal_chunks: tensor has {tensor.numel()} elements; a multiple "
            f"of the group's {size} ranks is required."
        )
    part_numel = tensor.numel() // size
    start = get_distributed_rank(tp_group) * part_numel
    part = tensor.reshape(-1)[start : start + part_numel]
    return part.clone() if new_buffer else part


def gather_split_1d_tensor(
    tensor: torch.Tensor, tp_group: ProcessGroup | None = None
) -> torch.Tensor:
    """Inverse of `split_tensor_into_1d_equal_chunks`: all ranks' parts in rank order, flat."""
    size = get_distributed_world_size(tp_group)
    if size == 1:
        return tensor.reshape(-1).clone()
    gathered = tensor.new_empty(size * tensor.numel())
    with naming("gather_split_1d_tensor", "all-gather", tp_group):
        all_gather_single(gathered, tensor.reshape(-1).contiguous(), group=tp_group)
    return gathered
