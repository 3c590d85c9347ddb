# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hooks by which torch's fully_shard (FSDP2) gathers quantized parameters as they are.

Each rank holds rows of a parameter. Before a forward or backward torch asks for the buffers to
gather, concatenates those of all ranks along the first axis, and asks for a tensor around the
result. What is gathered are data and scales without the padding of rows, which is put back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .quantized_tensor import QuantizedTensor


class _Gathered(NamedTuple):
    """What a rank knows besides the buffers."""

    shard: Any  # storage or tensor that the buffers are of
    usages: dict[str, bool]
    shape: torch.Size  # of the whole parameter


def _wanted_usages(module: Any) -> dict[str, bool]:
    """Copies that the coming pass reads: rowwise in a forward, columnwise in a backward.

    Both where the gathered parameter stays for the backward, or nothing is known.
    """
    both = {"rowwise": True, "columnwise": True}
    get_state = getattr(module, "_get_fsdp_state", None)
    groups = [] if get_state is None else getattr(get_state(), "_fsdp_param_groups", [])
    if not groups or not groups[0]._reshard_after_forward:
        return both
    is_backward = groups[0]._training_state.name == "PRE_BACKWARD"
    return {"rowwise": not is_backward, "columnwise": is_backward}


def _usages_to_gather(shard: Any, wanted: dict[str, bool]) -> dict[str, bool]:
    """Those of the wanted copies that are held; all that are held if that is none.

    All, too, where the copies have buffers of different sizes: torch keeps the memory of the first
    gather for the later ones.
    """
    held: dict[str, bool] = shard.get_usages()
    usages = {name: held[name] and wanted[name] for name in held}
    if usages == held or not any(usages.values()):
        return held
    forms = set()
    for name in held:
        buffers = shard.fsdp_extract_buffers({other: other == name for other in held})
        forms.add(tuple((buffer.dtype, buffer.numel()) for buffer in buffers.values()))
    return usages if len(forms) == 1 else held


def _with_rows(buffer: torch.Tensor, rows: int) -> torch.Tensor:
    """The buffer, filled up with rows of zeros: the last ranks have fewer than the others."""
    if buffer.shape[0] >= rows:
        return buffer
    return torch.cat([buffer, buffer.new_zeros((rows - buffer.shape[0], *buffer.shape[1:]))])


class FsdpTensor(QuantizedTensor):
    """A quantized tensor whose rows can be gathered."""

    def fsdp_pre_all_gather(
        self,
        mesh: Any,
        orig_size: torch.Size,
        contiguous_orig_stride: Any,
        module: Any,
        mp_policy: Any,
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Buffers to gather along the first axis, and what `fsdp_post_all_gather` needs besides.

        Parameters
        ----------
        mesh : DeviceMesh
            Ranks that hold the other rows.
        orig_size : torch.Size
            Shape of the whole parameter.
        contiguous_orig_stride, mp_policy
            Not used: the nominal dtype comes after gathering.
        module : torch.nn.Module
            The parameter's module; an FSDP module says which pass is coming.

        Raises
        ------
        ValueError
            If this rank's rows are no whole blocks.
        NotImplementedError
            For scales in the order of a GPU's GEMM.
        """
        del contiguous_orig_stride, mp_policy
        shard = self._fsdp_shard(mesh, orig_size)
        usages = _usages_to_gather(shard, _wanted_usages(module))
        buffers = shard.fsdp_extract_buffers(usages)
        if len(buffers) == 1 and mesh is not None:
            ((name, rows),) = buffers.items()
            buffers = {name: _with_rows(rows, -(-orig_size[0] // mesh.size()))}
        return tuple(buffers.values()), _Gathered(shard, usages, torch.Size(orig_size))

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> Any:
        """The whole parameter around gathered buffers.

        Parameters
        ----------
        all_gather_outputs : tuple of torch.Tensor
            The buffers of all ranks, one below the other.
        metadata
            From `fsdp_pre_all_gather`.
        param_dtype : torch.dtype
            Nominal dtype.
        out : QuantizedTensor, optional
            The result of an earlier gather, to hold the new buffers.

        Returns
        -------
        tuple or None
            (tensor, buffers that torch does not know of); None with `out`.
        """
        gathered: _Gathered = metadata
        names = gathered.shard.fsdp_buffer_fields(gathered.usages)
        buffers = dict(zip(names, all_gather_outputs, strict=False))
        if len(buffers) < len(names):  # torch copies the first one only where there is one rank
            own = gathered.shard.fsdp_extract_buffers(gathered.usages)
            buffers = {name: buffers.get(name, buffer.clone()) for name, buffer in own.items()}
        fields = gathered.shard.fsdp_assign_gathered(buffers, gathered.usages, gathered.shape)
        fields.update(shape=gathered.shape, dtype=param_dtype)
        if out is None:
            whole: Any = type(self)(**fields)
            whole._after_bytes_written()
            return whole, ()
        fields.pop("quantizer")
        out._adopt(fields, out._quantizer)
        out._after_bytes_written()
        return None

    def _fsdp_shard(self, mesh: Any, whole_shape: torch.Size) -> Any:
        """This rank's rows, with what all ranks' must have in common."""
        if self._quantizer is None or mesh is None or mesh.size() == 1:
            return self
        rows, size = whole_shape[0], mesh.size()
        if -(-rows // size) * (size - 1) < rows:
            return self._quantizer.fsdp_shard(self, mesh.get_group())
        return self._quantizer.fsdp_shard_of_few_rows(self, mesh.get_group())


# --- a torch operation by which a parameter is sharded: (tensor, func, args, kwargs) -> result ---


def _can_be_gathered(tensor: Any, usages: dict[str, bool]) -> bool:
    try:
        tensor.fsdp_extract_buffers(usages)
    except (ValueError, NotImplementedError):
        return False
    return True


def is_even_shard(tensor: Any, shape: torch.Size) -> bool:
    """Whether ranks could each hold rows of a shape: of parts with padding, torch gathers one
    buffer only, so those of all ranks have to be plain.
    """
    return len(shape) == 2 and shape[0] > 0 and tensor.shape[0] % shape[0] == 0


def new_zeros(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros of rows that could be gathered stay quantized."""
    del func
    shape, usages = torch.Size(args[1]), tensor.get_usages()
    dtype = kwargs.get("dtype") or tensor.dtype
    if not is_even_shard(tensor, shape) or dtype != tensor.dtype or tensor._quantizer is None:
        return NotImplemented
    if not _can_be_gathered(tensor, usages):
        return NotImplemented
    quantizer = tensor._quantizer.copy()
    quantizer.internal = False
    quantizer.set_usage(**usages)
    device = kwargs.get("device") or tensor.device
    zeros = quantizer.make_empty(shape, dtype=dtype, device=device)
    if not _can_be_gathered(zeros, usages):
        return NotImplemented
    for buffer in zeros._buffers().values():
        if buffer is not None:
            buffer.zero_()
    return zeros
