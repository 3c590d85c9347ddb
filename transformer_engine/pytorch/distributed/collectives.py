# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives along the first axis, on plain and quantized tensors.

torch.distributed does the work: NCCL on GPUs, gloo on CPUs. Each function gives its result and,
with `async_op`, a handle whose `wait()` must be called before the result is used.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ..arguments import check_flag, check_group, check_tensor
from ..rank_errors import NamedHandles, naming
from ..tensor.quantizer import Quantizer
from ..tensor.storage.quantized_storage import QuantizedTensorStorage
from .groups import all_gather_single, get_distributed_world_size, reduce_scatter_single


def _check(who: str, inp: Any, name: str, group: Any, async_op: Any) -> int:
    """Refuse arguments of another kind; the number of ranks."""
    if not isinstance(inp, QuantizedTensorStorage):
        check_tensor(who, "inp", inp)
    check_group(who, name, group)
    check_flag(who, "async_op", async_op)
    try:
        size = get_distributed_world_size(group)
    except ValueError as error:  # destroyed, or of an earlier default group
        raise ValueError(
            f"{who}: {name} is a process group that torch.distributed no longer knows; a living "
            "group is required. Pass one made since the latest init_process_group."
        ) from error
    if size < 1:
        raise ValueError(
            f"{who}: {name} is a group without this rank; only its members can communicate in it. "
            "Call this on the ranks of the group only."
        )
    return size


def _check_plain(who: str, inp: Any) -> None:
    if isinstance(inp, QuantizedTensorStorage):
        raise TypeError(
            f"{who}: inp is a {type(inp).__name__}; a plain tensor is required, since the sum of "
            "quantized values is none. Pass inp.dequantize()."
        )


def _check_output(
    who: str, name: str, output: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    check_tensor(who, name, output)
    if output.shape != shape or output.dtype != dtype or not output.is_contiguous():
        raise ValueError(
            f"{who}: {name} has shape {tuple(output.shape)}, dtype {output.dtype} and strides "
            f"{output.stride()}; a contiguous tensor of shape {shape} and dtype {dtype} is "
            "required. Allocate it anew, or leave it out."
        )


def _plain(tensor: Any) -> torch.Tensor:
    """The values, outside autograd: collectives have no gradient."""
    is_quantized = isinstance(tensor, QuantizedTensorStorage)
    return (tensor.dequantize() if is_quantized else tensor).detach()  # type: ignore[no-any-return]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """One-byte floats as integers, which every backend can send."""
    is_float8 = tensor.is_floating_point() and tensor.element_size() == 1
    return tensor.view(torch.uint8) if is_float8 else tensor


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
    else:
        _check_output("gather_along_first_dim", "output_tensor", output, shape, inp.dtype)
    with naming("gather_along_first_dim", "all-gather", group) as context:
        handle = all_gather_single(
            _as_bytes(output.detach()), _as_bytes(inp.contiguous()), group=group, async_op=async_op
        )
    return output, NamedHandles([handle], context) if async_op else None


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
        Give a quantized result, bit for bit that of the gathered tensor. The part is quantized,
        with one scale or amax for all ranks; bytes and scales are sent. Where a block of the whole
        would have rows of two ranks (a columnwise copy, or square tiles, of parts that are not
        whole blocks), and for other formats, high precision is gathered, with a warning, and
        quantized then. A copy that follows from the rowwise one is not sent.
    output_tensor : torch.Tensor or QuantizedTensorStorage, optional
        Where to put the result; [ranks * n, ...].
    external_coalescing : bool, default False
        The caller's coalescing manager owns the communication: no handle is returned, and a
        transpose of a quantized result is made on demand only. No amax can be reduced then: for
        current scaling and NVFP4, pass a part that was quantized with amax reduction.

    Returns
    -------
    tuple
        (result, handle or None).

    Raises
    ------
    ValueError
        If `inp` has no axis, `output_tensor` does not fit, or the group is without this rank or
        destroyed.
    TypeError
        For no tensor, no process group, or an `async_op` that is no bool.
    """
    size = _check("gather_along_first_dim", inp, "process_group", process_group, async_op)
    if size == 1:
        return _gather_alone(inp, quantizer, output_tensor), None
    is_async = async_op or external_coalescing
    if quantizer is None:
        result, handle = _gather_plain(_plain(inp), process_group, is_async, output_tensor)
        return result, None if external_coalescing else handle
    shard = quantizer.quantize_shard(inp, process_group)
    if shard is None:
        warnings.warn(
            f"gather_along_first_dim: {type(quantizer).__name__} has no gather of quantized data "
            f"for shape {tuple(inp.shape)}; gathering high precision. Formats of blocks need ranks "
            "with whole blocks of rows.",
            UserWarning,
            stacklevel=2,
        )
        gathered, _ = _gather_plain(_plain(inp), process_group, False, None)
        return quantizer(gathered, out=output_tensor), None
    result, buffers = quantizer.join_shards(shard, size, output_tensor)
    handles = [
        _gather_plain(source, process_group, is_async, target)[1] for source, target in buffers
    ]

    def finish() -> None:
        result._after_gather(quantizer.get_usages())

    if external_coalescing:
        return result, None
    if async_op:
        context = naming("gather_along_first_dim", "all-gather", process_group)
        return result, NamedHandles(handles, context, finish)
    finish()
    return result, None


def _gather_alone(inp: Any, quantizer: Quantizer | None, output: Any) -> Any:
    if quantizer is not None:
        if isinstance(inp, QuantizedTensorStorage) and output is None:
            usages = quantizer.get_usages()
            inp.update_usage(usages["rowwise"] or None, usages["columnwise"] or None)
            return inp
        return quantizer(_plain(inp), out=output)
    if output is None:
        return inp
    plain = _plain(inp)
    _check_output("gather_along_first_dim", "output_tensor", output, plain.shape, plain.dtype)
    output.detach().copy_(plain)
    return output


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
        If the first axis is not a multiple of the number of ranks, `output` does not fit, or the
        group is without this rank or destroyed.
    TypeError
        For no tensor, no process group, or an `async_op` that is no bool.
    """
    who = "reduce_scatter_along_first_dim"
    size = _check(who, inp, "tp_group", tp_group, async_op)
    if size == 1 and output is None and not isinstance(inp, QuantizedTensorStorage):
        return inp, None
    plain = _plain(inp)
    if size > 1 and (plain.dim() == 0 or plain.shape[0] % size):
        raise ValueError(
            f"{who}: inp has shape {tuple(plain.shape)}; a first axis that is a multiple of the "
            f"group's {size} ranks is required. Pad it."
        )
    shape = plain.shape if size == 1 else (plain.shape[0] // size, *plain.shape[1:])
    if output is None:
        output = plain if size == 1 else plain.new_empty(shape)
    else:
        _check_output(who, "output", output, shape, plain.dtype)
    if size == 1:
        output.detach().copy_(plain)
        return output, None
    with naming(who, "reduce-scatter", tp_group) as context:
        handle = reduce_scatter_single(
            output.detach(), plain.contiguous(), group=tp_group, async_op=async_op
        )
    return output, NamedHandles([handle], context) if async_op else None


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
    ValueError
        If the group is without this rank or destroyed.
    TypeError
        For no plain tensor, no process group, or an `async_op` that is no bool.
    """
    size = _check("allreduce", inp, "tp_group", tp_group, async_op)
    _check_plain("allreduce", inp)
    if size == 1:
        return inp, None
    values = inp.detach()
    dense = values.contiguous()  # gloo reduces the memory, whatever the strides
    finish = None if values.is_contiguous() else lambda: values.copy_(dense)
    with naming("allreduce", "all-reduce", tp_group) as context:
        handle = torch.distributed.all_reduce(dense, group=tp_group, async_op=async_op)
    if async_op:
        return inp, NamedHandles([handle], context, finish)
    if finish is not None:
        finish()
    return inp, None


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
    size = _check("symmetric_all_reduce", inp, "tp_group", tp_group, async_op)
    _check_plain("symmetric_all_reduce", inp)
    if all_reduce_type not in ("nccl", *_SYMMETRIC_TYPES):
        raise TypeError(
            f"symmetric_all_reduce: all_reduce_type is {all_reduce_type!r}; one of "
            f"{('nccl', *_SYMMETRIC_TYPES)} is required."
        )
    if size == 1:
        return inp, None
    if all_reduce_type == "nccl":
        return allreduce(inp, tp_group, async_op)
    raise NotImplementedError(
        f"symmetric_all_reduce: all_reduce_type is {all_reduce_type!r}; it needs symmetric GPU "
        "memory, which this build (CPU only) does not have. Use 'nccl'."
    )
