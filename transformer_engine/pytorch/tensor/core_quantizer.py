# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizers whose settings live in a native object, which native steps read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..arguments import check_flag, check_number
from ..constants import DType
from ..rank_errors import naming
from .quantizer import Quantizer, check_quantizable

FP8_MAX = {DType.kFloat8E4M3: 448.0, DType.kFloat8E5M2: 57344.0}


def check_fp8_dtype(owner: str, fp8_dtype: Any) -> DType:
    dtype = DType.cast(fp8_dtype)
    if dtype not in FP8_MAX:
        raise ValueError(
            f"{owner}: fp8_dtype is {dtype.name}; kFloat8E4M3 or kFloat8E5M2 is required."
        )
    return dtype


def check_destination(owner: str, src: torch.Tensor, dst: Any, storage_class: Any) -> None:
    """Refuse to overwrite what is of another format or shape."""
    if not isinstance(dst, storage_class):
        name = storage_class.tensor_class.__name__
        raise TypeError(f"{owner}: dst is a {type(dst).__name__}; a {name} is required.")
    check_quantizable(owner, src)
    if src.shape != dst.size():
        raise ValueError(
            f"{owner}: src has shape {tuple(src.shape)}; the shape of dst, {tuple(dst.size())}, is "
            "required."
        )


def check_output(owner: str, output: Any, shape: torch.Size, storage_class: Any) -> None:
    """Refuse to gather into what is of another format or shape."""
    if not isinstance(output, storage_class):
        name = storage_class.tensor_class.__name__
        raise TypeError(
            f"{owner}: output_tensor is a {type(output).__name__}; a {name} is required."
        )
    if output.size() != shape:
        raise ValueError(
            f"{owner}: output_tensor has shape {tuple(output.size())}; {tuple(shape)} is required. "
            "Allocate it anew, or leave it out."
        )


def _is_coalescing(group: Any) -> bool:
    """Whether a coalescing manager puts off the group's collectives."""
    world = torch.distributed.distributed_c10d._world
    return (group or world.default_pg) in world.pg_coalesce_state


def reduce_amax(owner: str, amax: torch.Tensor, group: Any) -> None:
    """The maximum over the ranks of a group, in place.

    Raises
    ------
    RuntimeError
        Inside a coalescing manager, where it would come too late.
    """
    if _is_coalescing(group):
        raise RuntimeError(
            f"{owner}: an amax must be reduced over the ranks, but a coalescing manager puts off "
            "all communication; a quantized tensor is required there. Quantize it before, with "
            "with_amax_reduction."
        )
    with naming(owner, "all-reduce of amaxes", group):
        torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=group)


def is_common(values: torch.Tensor, group: Any) -> bool:
    """Whether all ranks of a group have the same values; taken for granted while coalescing."""
    if _is_coalescing(group):
        return True
    lowest, highest = values.clone(), values.clone()
    torch.distributed.all_reduce(lowest, op=torch.distributed.ReduceOp.MIN, group=group)
    torch.distributed.all_reduce(highest, op=torch.distributed.ReduceOp.MAX, group=group)
    return torch.equal(lowest, highest)


def core_setting(
    name: str, text: str, check: Callable[[str, str, Any], Any] = check_flag, core_name: str = ""
) -> Any:
    """A property that lives in the native object, there perhaps under another name.

    `check` takes who is assigned to, the attribute's name and the value, and gives the value.
    """
    stored = core_name or name

    def read(self: CoreQuantizer) -> Any:
        return getattr(self._core, stored)

    def write(self: CoreQuantizer, value: Any) -> None:
        checked = check(type(self).__name__, name, value)
        self._check_setting(name, checked)
        setattr(self._core, stored, checked)

    return property(read, write, doc=text)


def check_amax_epsilon(owner: str, name: str, value: Any) -> float:
    """A lower bound of an amax."""
    rule = "it must be finite and at least 0."
    return check_number(owner, name, value, rule, lambda epsilon: 0.0 <= epsilon < math.inf)


class CoreQuantizer(Quantizer):
    """A quantizer around a native object (`_core`): Python and native steps see one state."""

    _core: Any

    def __init__(self, core: Any, *, rowwise: bool, columnwise: bool) -> None:
        self._core = core
        super().__init__(rowwise=rowwise, columnwise=columnwise)

    rowwise_usage: bool = core_setting("rowwise_usage", "Make the rowwise copy.")
    columnwise_usage: bool = core_setting("columnwise_usage", "Make the columnwise copy.")
    internal: bool = core_setting("internal", "Give storages instead of tensors.")
    optimize_for_gemm: bool = core_setting(
        "optimize_for_gemm", "Without effect: the layout suits the GEMM anyway."
    )

    @property
    def dtype(self) -> DType:
        """Type of the elements, such as kFloat8E4M3."""
        return DType(self._core.fp8_dtype)

    @dtype.setter
    def dtype(self, value: DType) -> None:
        self._core.fp8_dtype = int(self._checked_dtype(type(self).__name__, value))

    @staticmethod
    def _checked_dtype(owner: str, value: Any) -> DType:
        return check_fp8_dtype(owner, value)

    def _copy_settings_to(self, other: CoreQuantizer) -> None:
        other.internal = self.internal
        other.optimize_for_gemm = self.optimize_for_gemm

    def _check_usages(self, method: str) -> None:
        if not (self.rowwise_usage or self.columnwise_usage):
            raise ValueError(
                f"{type(self).__name__}.{method}: rowwise and columnwise usage are both off, so "
                "there is nothing to make. Turn one on with set_usage."
            )
