# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Helpers for torch's first FullyShardedDataParallel (FSDP1).

Imported only when asked for: torch.distributed.fsdp takes most of a second to import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.distributed.fsdp._traversal_utils import _get_fsdp_states_with_modules

from .groups import get_distributed_world_size
from .tensor_parallel import gather_split_1d_tensor, split_tensor_into_1d_equal_chunks


def _is_te_module(module: torch.nn.Module) -> bool:
    # By its attributes: the modules are layers above this one.
    return hasattr(module, "fsdp_group") and hasattr(module, "fp8_meta")


def prepare_te_modules_for_fsdp(fsdp_root: torch.nn.Module) -> None:
    """Tell the modules inside FSDP units over which group to shard what they save.

    Parameters
    ----------
    fsdp_root : torch.distributed.fsdp.FullyShardedDataParallel
        The outermost unit. Every module of this library below a unit gets its process group as
        ``fsdp_group``.

    Raises
    ------
    TypeError
        If `fsdp_root` is no FSDP module.
    RuntimeError
        If a unit's own module holds quantized primary weights: FSDP1 flattens parameters, which
        quantized tensors do not survive.
    """
    if not isinstance(fsdp_root, TorchFSDP):
        raise TypeError(
            f"prepare_te_modules_for_fsdp: fsdp_root is a {type(fsdp_root).__name__}; a "
            "torch.distributed.fsdp.FullyShardedDataParallel is required. Wrap the model first."
        )
    states, units = _get_fsdp_states_with_modules(fsdp_root)
    for state, unit in zip(states, units, strict=True):
        for module in unit.modules():
            if not _is_te_module(module):
                continue
            if getattr(module, "primary_weights_in_fp8", False):
                raise RuntimeError(
                    f"prepare_te_modules_for_fsdp: {type(module).__name__} holds quantized primary "
                    "weights, which FSDP1 cannot shard. Build it outside quantized_model_init, or "
                    "use FSDP2 (fully_shard)."
                )
            setattr(module, "fsdp_group", state.process_group)  # noqa: B010  # a module's own


class FullyShardedDataParallel(TorchFSDP):
    """torch's FSDP1, followed by `prepare_te_modules_for_fsdp`; same arguments."""

    def __init__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        prepare_te_modules_for_fsdp(self)


def scatter_saved_tensors(
    group: ProcessGroup | None, *tensors: torch.Tensor | None
) -> list[torch.Size | None]:
    """Keep only this rank's flat part of each tensor, in place; return the full shapes.

    Tensors that cannot be split evenly, and None, stay whole; their shape is None.
    """
    shapes: list[torch.Size | None] = []
    size = get_distributed_world_size(group)
    for tensor in tensors:
        if group is None or tensor is None or size == 1 or tensor.numel() % size:
            shapes.append(None)
            continue
        shapes.append(tensor.shape)
        tensor.data = split_tensor_into_1d_equal_chunks(tensor.data, group, new_buffer=True)
    return shapes


def gather_saved_tensors(
    group: ProcessGroup | None,
    shapes: list[torch.Size | None],
    *tensors: torch.Tensor | None,
) -> None:
    """Undo `scatter_saved_tensors`, in place."""
    for shape, tensor in zip(shapes, tensors, strict=True):
        if shape is not None and tensor is not None:
            tensor.data = gather_split_1d_tensor(tensor.data, group).view(shape)
