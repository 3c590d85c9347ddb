# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The empty `_extra_state` of a module that has run under no recipe with a state yet.

torch.distributed.checkpoint loads in place, into a state dict of the model that is to be restored,
and refuses tensors of another size than the saved one. A fresh model cannot know that size: it
depends on the recipe. So its empty tensor tells the loader that it has any size, and has the saved
one from the moment that the loader asks for the place to write to. It answers the questions of
torch's `_Checkpointable` protocol and of its planner; else it is an ordinary tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast

import torch

_ANY_LENGTH = 2**62  # more than any file has


class _AnySize:
    """The size [0], which equals every size of one dimension.

    No tuple: torch.Size compares those by itself, and no class can be derived from it.
    """

    def __ne__(self, other: object) -> bool:
        return not (isinstance(other, tuple) and len(other) == 1)

    def __eq__(self, other: object) -> bool:
        return not self != other

    __hash__ = None  # type: ignore[assignment]  # equal to unequal things

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter((0,))

    def __getitem__(self, index: Any) -> Any:
        return (0,)[index]

    def __repr__(self) -> str:
        return repr(torch.Size([0]))

    def __reduce__(self) -> Any:
        return (torch.Size, ((0,),))  # what other ranks are told: torch allocates by it


class FreshState(torch.Tensor):
    """uint8 [0], until a loader narrows it to what it has found."""

    def size(self, dim: int | None = None) -> Any:
        """Any size while it is empty."""
        if self.numel():
            return super().size() if dim is None else super().size(dim)
        return _AnySize() if dim is None else _ANY_LENGTH

    def narrow(self, dim: Any, start: Any, length: Any) -> torch.Tensor:
        """The place for the saved bytes."""
        plain = self.as_subclass(torch.Tensor)
        if not self.numel() and dim == start == 0:
            self.resize_(length)
            return self.as_subclass(torch.Tensor)
        return plain.narrow(dim, start, length)

    def __create_chunk_list__(self) -> list[Any]:
        metadata = sys.modules["torch.distributed.checkpoint.metadata"]  # its planner calls this
        length = self.numel() or _ANY_LENGTH
        return [metadata.ChunkStorageMetadata(torch.Size([0]), torch.Size([length]))]

    def __create_write_items__(self, fqn: str, value: Any) -> list[Any]:
        del value  # this tensor
        planner = sys.modules["torch.distributed.checkpoint.planner"]
        metadata = sys.modules["torch.distributed.checkpoint.metadata"]
        plain = self.as_subclass(torch.Tensor)
        chunk = metadata.ChunkStorageMetadata(torch.Size([0]), plain.size())
        properties = metadata.TensorProperties.create_from_tensor(plain)
        data = planner.TensorWriteData(chunk=chunk, properties=properties, size=plain.size())
        index = metadata.MetadataIndex(fqn, torch.Size([0]))
        return [planner.WriteItem(index, planner.WriteItemType.TENSOR, tensor_data=data)]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        del index  # there is one
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FreshState:
        copied = cast(FreshState, self.clone())
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)  # files hold a plain tensor


def fresh_state() -> torch.Tensor:
    """A new one."""
    return torch.empty(0, dtype=torch.uint8).as_subclass(FreshState)
