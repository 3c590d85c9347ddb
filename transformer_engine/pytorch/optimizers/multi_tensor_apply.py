# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calling functions on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..arguments import check_callables, check_int

_CHUNK_SIZE = 65536


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that this rank holds; other tensors as they are."""
    # Not by the class: importing torch.distributed.tensor takes a second, and no DTensor exists
    # before someone did.
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    is_dtensor = hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")
    return tensor._local_tensor if is_dtensor else tensor


class MultiTensorApply:
    """Calls functions on lists of tensors with a fixed chunk size.

    Parameters
    ----------
    chunk_size : int
        First argument of the functions. Those of this library cut the work in their own way.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = check_int(type(self).__name__, "chunk_size", chunk_size)

    def __call__(
        self,
        op: Callable[..., Any],
        noop_flag_buffer: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        *args: Any,
    ) -> Any:
        """``op(chunk_size, noop_flag_buffer, tensor_lists, *args)`` without empty tensors.

        Parameters
        ----------
        op : callable
            One of the functions on lists, or another of this form.
        noop_flag_buffer : torch.Tensor
            int32 [1], on the tensors' device.
        tensor_lists : list of lists of torch.Tensor
            Parallel. DTensors in these lists are replaced by this rank's part. Positions whose
            tensor in the first list is empty are left out of the call.
        *args
            Further arguments of `op`.

        Returns
        -------
        What `op` returns; None, without a call, where no tensor has elements.

        Raises
        ------
        RuntimeError
            If the lists differ in length.
        """
        check_callables("multi_tensor_applier", op=op)
        for tensors in tensor_lists:
            for position, tensor in enumerate(tensors):
                local = local_tensor(tensor)
                if local is not tensor:
                    tensors[position] = local
        lengths = [len(tensors) for tensors in tensor_lists]
        if len(set(lengths)) > 1:
            raise RuntimeError(
                f"multi_tensor_applier: tensor_lists have {lengths} tensors; lists of one length "
                "are required."
            )
        held = [i for i, tensor in enumerate(tensor_lists[0]) if tensor.numel()] if lengths else []
        if not held:
            return None
        if len(held) < lengths[0]:
            tensor_lists = [[tensors[i] for i in held] for tensors in tensor_lists]
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(_CHUNK_SIZE)
