# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives along the first axis, on plain and quantized tensors.

torch.distributed does the work: NCCL on GPUs, gloo on CPUs. Each function gives its result and,
with `async_op`, a handle whose `wait()` must be called before the result is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ..arguments import check_flag, check_group, check_tensor
from ..tensor.quantizer import Quantizer
from ..tensor.storage.quantized_storage import QuantizedTensorStorage
from .groups import get_distributed_world_size


class _HandleThen:
    """A handle that finishes the result after the communication."""

    def __init__(self, handle: Any, finish: Callable[[], None]):
        self._handle = handle
        self._finish: Callable[[], None] | None = finish

    def wait(self) -> None:
        self._handle.wait()
        if self._finish is not None:
            self._finish()
            self._finish = None


def _check(who: str, inp: Any, name: str, group: Any, async_op: Any) -> None:
    if not isinstance(inp, QuantizedTensorStorage):
        check_tensor(who, "inp", inp)
    check_group(who, name, group)
    check_flag(who, "async_op", async_op)


def _plain(tensor: Any) -> torch.Tensor:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensorStorage) else tensor


def _gather_plain(
    inp: torch.Tensor, group: ProcessGroup | None, async_op: bool, output: torch.Tensor | None
) -> tuple[torch.Tensor, Any]:
    size = get_distributed_world_size(group)
    if inp.dim() == 0:
        raise ValueError(
            "gather_along_first_dim: inp has shape (); at least one axis is required to gather on."
        )
    shape = (size * inp.shape[0], *inp.shape[1:])
    if output is None:
        output = inp.new_empty(shape)
    elif output.shape != shape or output.dtype != inp.dtype or not output.is_contiguous():
        raise ValueError(
            f"gather_along_first_dim: output_tensor has shape {tuple(output.shape)}, dtype "
            f"{output.dtype} and strides {output.stride()}; a contiguous tensor of shape {shape} "
            f"and dtype {inp.dtype} is required."
        )
    handle = torch.distributed.all_gather_into_tensor(
        output, inp.contiguous(), group=group, async_op=async_op
    )
    return output, handle


def gather_along_first_dim(
    inp: Any,
    process_group: ProcessGroup | None,
    async_op: bool = False,
    quantizer: Quantizer | None = None,
    output_tensor: Any = None,
    external_coalescing: bool = False,
) -> tuple[Any, Any]:
    """Concatenate all ranks' tensors along the first axis, in rank order.

    Parameters
    ----------
    inp : torch.Tensor or QuantizedTensorStorage
        This rank's part, [n, ...], of one shape on all ranks.
    process_group : ProcessGroup or None
        None: all processes.
    async_op : bool, default False
        Return while communication goes on.
    quantizer : Quantizer, optional
        Give a quantized result. Per-tensor formats quantize the part (with one scale for all ranks)
        and send bytes; other formats gather high precision, with a warning, and quantize then.
    output_tensor : torch.Tensor or QuantizedTensorStorage, optional
        Where to put the result; [ranks * n, ...].
    external_coalescing : bool, default False
        The caller's coalescing manager owns the communication: no handle is returned, and a
        transpose of a quantized result is made on demand only.

    Returns
    -------
    tuple
        (result, handle or None).

    Raises
    ------
    TypeError
        For no tensor, no process group, or an `async_op` that is no bool.
    """
    _check("gather_along_first_dim", inp, "process_group", process_group, async_op)
    if get_distributed_world_size(process_group) == 1:
        return _gather_alone(inp, quantizer, output_tensor), None
    is_async = async_op or external_coalescing
    if quantizer is None:
        result, handle = _gather_plain(_plain(inp), process_group, is_async, output_tensor)
        return result, None if external_coalescing else handle
    shard = quantizer.quantize_shard(inp, process_group)
    if shard is None:
        warnings.warn(
            f"gather_along_first_dim: {type(quantizer).__name__} has no gather of quantized data; "
            "gathering high precision.",
            UserWarning,
            stacklevel=2,
        )
        gathered, _ = _gather_plain(_plain(inp), process_group, False, None)
        return quantizer(gathered, out=output_tensor), None
    result, buffers = quantizer.join_shards(
        shard, get_distributed_world_size(process_group), output_tensor
    )
    handle = None
    for source, target in buffers:
        _, handle = _gather_plain(source, process_group, is_async, target)

    def finish() -> None:
        result._after_gather(quantizer.get_usages())

    if external_coalescing:
        return result, None
    if async_op:
        return result, _HandleThen(handle, finish)
    finish()
    return result, None


def _gather_alone(inp: Any, quantizer: Quantizer | None, output: Any) -> Any:
    if quantizer is not None:
        if isinstance(inp, QuantizedTensorStorage) and output is None:
            usages = quantizer.get_usages()
            inp.update_usage(usages["rowwise"] or None, usages["columnwise"] or None)
            return inp
        return quantizer(_plain(inp), out=output)
    if output is not None:
        output.copy_(_plain(inp))
        return output
    return inp


def reduce_scatter_along_first_dim(
    inp: Any,
    tp_group: ProcessGroup | None,
    async_op: bool = False,
    output: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Any]:
    """Sum over all ranks; each keeps its part of the first axis.

    Parameters
    ----------
    inp : torch.Tensor or QuantizedTensorStorage
        [ranks * n, ...]; a quantized tensor is dequantized first.
    tp_group : ProcessGroup or None
        None: all processes.
    async_op : bool, default False
        Return while communication goes on.
    output : torch.Tensor, optional
        Where to put the result, [n, ...].

    Returns
    -------
    tuple
        (result, handle or None).

    Raises
    ------
    ValueError
        If the first axis is not a multiple of the number of ranks.
    TypeError
        For no tensor, no process group, or an `async_op` that is no bool.
    """
    _check("reduce_scatter_along_first_dim", inp, "tp_group", tp_group, async_op)
    size = get_distributed_world_size(tp_group)
    inp = _plain(inp)
    if size == 1:
        if output is not None:
            output.copy_(inp)
        return (inp if output is None else output), None
    if inp.dim() == 0 or inp.shape[0] % size:
        raise ValueError(
            f"reduce_scatter_along_first_dim: inp has shape {tuple(inp.shape)}; a first axis that "
            f"is a multiple of the group's {size} ranks is required."
        )
    if output is None:
        output = inp.new_empty((inp.shape[0] // size, *inp.shape[1:]))
    handle = torch.distributed.reduce_scatter_tensor(
        output, inp.contiguous(), group=tp_group, async_op=async_op
    )
    return output, handle


def allreduce(
    inp: torch.Tensor, tp_group: ProcessGroup | None = None, async_op: bool = False
) -> tuple[torch.Tensor, Any]:
    """Sum over all ranks, in place.

    Parameters
    ----------
    inp : torch.Tensor
        Overwritten with the sum.
    tp_group : ProcessGroup, optional
        Default all processes; nothing happens in a group of one.
    async_op : bool, default False
        Return while communication goes on.

    Returns
    -------
    tuple
        (inp, handle or None).

    Raises
    ------
    TypeError
        For no tensor, no process group, or an `async_op` that is no bool.
    """
    _check("allreduce", inp, "tp_group", tp_group, async_op)
    if get_distributed_world_size(tp_group) == 1:
        return inp, None
    return inp, torch.distributed.all_reduce(inp, group=tp_group, async_op=async_op)


_SYMMETRIC_TYPES = ("multimem_all_reduce", "two_shot", "one_shot")


def symmetric_all_reduce(
    inp: torch.Tensor,
    tp_group: ProcessGroup | None = None,
    async_op: bool = False,
    all_reduce_type: str = "multimem_all_reduce",
) -> tuple[torch.Tensor, Any]:
    """Sum over all ranks, in place, by a chosen algorithm.

    Parameters
    ----------
    inp, tp_group, async_op
        As `allreduce`.
    all_reduce_type : {"nccl", "multimem_all_reduce", "two_shot", "one_shot"}
        "nccl" is the process group's ordinary all-reduce.

    Raises
    ------
    TypeError
        For an unknown type, and as `allreduce`.
    NotImplementedError
        For the last three, which need GPUs with symmetric memory.
    """
    _check("symmetric_all_reduce", inp, "tp_group", tp_group, async_op)
    if all_reduce_type not in ("nccl", *_SYMMETRIC_TYPES):
        raise TypeError(
            f"symmetric_all_reduce: all_reduce_type is {all_reduce_type!r}; one of "
            f"{('nccl', *_SYMMETRIC_TYPES)} is required."
        )
    if get_distributed_world_size(tp_group) == 1:
        return inp, None
    if all_reduce_type == "nccl":
        return allreduce(inp, tp_group, async_op)
    raise NotImplementedError(
        f"symmetric_all_reduce: all_reduce_type is {all_reduce_type!r}; it needs symmetric GPU "
        "memory, which this build (CPU only) does not have. Use 'nccl'."
    )
