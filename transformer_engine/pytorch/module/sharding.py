# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensor and sequence parallelism of the linear modules: which part of a layer a rank holds.

A column-parallel layer splits the rows of its weight over the ranks of a group, a row-parallel one
the columns. What ranks exchange in a forward and a backward is in csrc/steps/sharding.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..cpp_extensions import steps
from ..distributed import get_distributed_rank

__all__ = [
    "WeightShard",
    "divide",
    "init_by_rank",
    "native_sharding",
    "output_shape",
    "refuse_composed",
]


def divide(owner: str, name: str, size: int, ranks: int) -> int:
    """This rank's share of a dimension; ValueError where ranks cannot have equal ones."""
    if size % ranks != 0:
        raise ValueError(
            f"{owner}: {name} is {size}; a multiple of the {ranks} tensor-parallel ranks is "
            "required."
        )
    return size // ranks


@dataclass(frozen=True)
class WeightShard:
    """A rank's part of a weight that is split over ranks.

    Attributes
    ----------
    dim : int
        0 for a column-parallel layer, 1 for a row-parallel one.
    rank, ranks : int
    blocks : int
        Rows of the whole weight lie in that many blocks, and the rank has a part of each: 2 where
        the halves of the output are an activation's input and its gate.
    """

    dim: int
    rank: int
    ranks: int
    blocks: int = 1

    def draw(self, init_method: Callable[[torch.Tensor], Any], part: torch.Tensor) -> None:
        """Fill `part` in place with this rank's part of a whole weight that is drawn.

        Every rank draws all of it, so that ranks whose generators are in one state get the parts
        of one weight: that which a single rank would draw. A method that leaves a tensor alone
        leaves the part alone, too.
        """
        sizes = list(part.shape)
        sizes[self.dim] *= self.ranks
        whole = part.new_empty(sizes)
        own = self.part_of(whole)
        own.copy_(part.view_as(own))
        init_method(whole)
        part.copy_(self.part_of(whole).reshape(part.shape))

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """A view of this rank's part; of a split first dimension [blocks, rows, columns]."""
        rows, cols = whole.shape
        if self.dim == 1:
            return whole.view(rows, self.ranks, cols // self.ranks)[:, self.rank]
        parts = whole.view(self.blocks, self.ranks, rows // (self.blocks * self.ranks), cols)
        return parts[:, self.rank]


def init_by_rank(
    init_method: Callable[[torch.Tensor], Any], rows: list[int], ranks: int
) -> Callable[[torch.Tensor], Any]:
    """Draw blocks of rows one below the other, then put those of each rank together.

    `WeightShard.draw` takes consecutive rows of what `init_method` fills; a rank needs its part of
    each block.
    """

    def draw(weight: torch.Tensor) -> None:
        init_method(weight)
        if weight.shape[0] == sum(rows):  # else a rank's part alone, where the group is unknown
            blocks = [block.chunk(ranks) for block in weight.split(rows)]
            weight.copy_(torch.cat([parts[rank] for rank in range(ranks) for parts in blocks]))

    return draw


def weight_shard(module: Any, dim: int, blocks: int, parallel_mode: str | None) -> Any:
    """The part of `module`'s rank, or None where the weight is whole or the rank is not known."""
    if parallel_mode is None or module.tp_size == 1 or module.tp_group is None:
        return None
    return WeightShard(dim, get_distributed_rank(module.tp_group), module.tp_size, blocks)


def native_sharding(module: Any, parallel_mode: str | None) -> Any:
    """What a native step exchanges with other ranks; None without any.

    Raises
    ------
    RuntimeError
        If there are other ranks and their group is not known yet.
    """
    if parallel_mode is None or module.tp_size == 1:
        return None
    owner = type(module).__name__
    if module.tp_group is None:
        raise RuntimeError(
            f"{owner}.forward: tp_size is {module.tp_size} and tp_group is None; the group of the "
            "tensor-parallel ranks is required. Call set_tensor_parallel_group first."
        )
    return steps.Sharding(
        owner=owner,
        parallel_mode=parallel_mode,
        sequence_parallel=bool(module.sequence_parallel),
        group=module.tp_group,
    )


def output_shape(
    module: Any, parallel_mode: str | None, inp: torch.Tensor, features: int
) -> tuple[int, ...]:
    """Shape of a layer's output."""
    rows, *others = (*inp.shape[:-1], features)
    if parallel_mode is not None and module.sequence_parallel and inp.dim() > 1:
        rows = rows * module.tp_size if parallel_mode == "column" else rows // module.tp_size
    return (rows, *others)


def refuse_composed(module: Any, parallel_mode: str | None) -> None:
    """NotImplementedError where a formula of torch's operators would need other ranks."""
    if parallel_mode is not None and module.tp_size > 1:
        raise NotImplementedError(
            f"{type(module).__name__}.forward: function transforms, tracers, fake and meta tensors "
            f"with tp_size={module.tp_size} and parallel_mode={parallel_mode!r}; plain tensors are "
            "required, which native steps exchange."
        )
