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
        shard = self._fsdp_shard(mesh)
        held, wanted = shard.get_usages(), _wanted_usages(module)
        usages = {name: held[name] and wanted[name] for name in held}
        if not any(usages.values()):
            usages = held
        buffers = shard.fsdp_extract_buffers(usages)
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
        buffers = dict(zip(names, all_gather_outputs, strict=True))
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

    def _fsdp_shard(self, mesh: Any) -> Any:
        """This rank's rows, with what all ranks' must have in common."""
        if self._quantizer is None or mesh is None or mesh.size() == 1:
            return self
        return self._quantizer.fsdp_shard(self, mesh.get_group())
