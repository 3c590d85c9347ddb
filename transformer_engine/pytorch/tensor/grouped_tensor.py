# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several tensors of one format packed into one, such as the weights of experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..arguments import check_int
from .identity_tensor import IdentityQuantizer
from .quantized_tensor import QuantizedTensor, aten
from .quantizer import NOMINAL_DTYPES, Quantizer
from .shared_view_tensor import SharedViewTensor, raw_views
from .storage.grouped_tensor_storage import GroupedTensorStorage, shape_of_group

__all__ = ["GroupedTensor", "GroupedTensorStorage"]


class GroupedTensor(SharedViewTensor, GroupedTensorStorage):  # type: ignore[misc]
    """Members of one format, packed; to torch a matrix of all their rows.

    Parameters
    ----------
    shape : sequence of int
        [sum of rows, columns], or [number of elements] of members with different columns.
    dtype : torch.dtype
        Nominal dtype.
    members : sequence of QuantizedTensor
        Of one class; their buffers are moved into packed ones unless they lie there already.
    quantizer : Quantizer, optional
        Copied; None for high precision.
    requires_grad : bool, default False
        As of any tensor.
    """

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        members: Sequence[Any],
        quantizer: Quantizer | None = None,
        requires_grad: bool = False,
    ) -> GroupedTensor:
        if not members:
            raise ValueError(f"{cls.__name__}: members is empty; at least one is required.")
        if torch.Size(shape) != shape_of_group(members):
            raise ValueError(
                f"{cls.__name__}: shape is {tuple(shape)}; {tuple(shape_of_group(members))}, that "
                "of the members, is required."
            )
        device = members[0].device
        self = QuantizedTensor._make_wrapper(cls, shape, dtype, device, requires_grad)
        own = None if quantizer is None else quantizer.copy_for_tensor()
        self._init_members(members, own)
        return self

    @classmethod
    def make_grouped_tensor_with_shapes(
        cls,
        num_tensors: int,
        shapes: Iterable[Sequence[int]],
        quantizer: Quantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> GroupedTensor:
        """An uninitialised group.

        Parameters
        ----------
        num_tensors : int
            At least 1.
        shapes : iterable
            A shape for each, of one axis or more.
        quantizer : Quantizer, optional
            None for high precision.
        device : optional
            Default torch's.
        dtype : torch.dtype, default torch.float32
            Nominal dtype.

        Raises
        ------
        ValueError
            If there are not as many shapes as tensors.
        """
        owner = f"{cls.__name__}.make_grouped_tensor_with_shapes"
        check_int(owner, "num_tensors", num_tensors)
        sizes = [tuple(shape) for shape in shapes]
        if len(sizes) != num_tensors or any(not shape for shape in sizes):
            raise ValueError(
                f"{owner}: shapes are {sizes}; {num_tensors}, each of one axis or more, are "
                "required."
            )
        maker = (quantizer or IdentityQuantizer()).copy_for_tensor()
        maker.internal = False
        members = [maker.make_empty(shape, dtype=dtype, device=device) for shape in sizes]
        return cls(shape_of_group(members), dtype, members=members, quantizer=quantizer)

    @classmethod
    def from_tensors(
        cls, tensors: Iterable[torch.Tensor], quantizer: Quantizer | None = None
    ) -> GroupedTensor:
        """A group of given values.

        Parameters
        ----------
        tensors : iterable of torch.Tensor
            High precision, of one dtype and device.
        quantizer : Quantizer, optional
            None for high precision.
        """
        maker = (quantizer or IdentityQuantizer()).copy_for_tensor()
        maker.internal = False
        members = [maker.quantize_impl(tensor.detach()) for tensor in tensors]
        if not members:
            raise ValueError(f"{cls.__name__}.from_tensors: tensors is empty; one is required.")
        return cls(shape_of_group(members), members[0].dtype, members=members, quantizer=quantizer)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return GroupedTensorStorage.__repr__(self)

    def _alias(self, *, dtype: torch.dtype | None = None) -> GroupedTensor:
        # Members of its own on the same buffers: a copy dropped from one alias stays in the others.
        members = [member._alias(dtype=dtype) for member in self._members]
        made: GroupedTensor = type(self)(
            self.shape, dtype or self.dtype, members=members, quantizer=self._quantizer
        )
        return made

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        self._init_members(metadata["members"], quantizer)

    def _overwrite(self, tensor: torch.Tensor, noop_flag: torch.Tensor | None = None) -> None:
        if noop_flag is None or noop_flag.item() == 0:
            self._overwrite_all(tensor)

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None) -> Any:
        """Overwrite all members from values of the shape of the whole."""
        return QuantizedTensor.quantize_(self, tensor, noop_flag=noop_flag)

    def _require_quantizer(self, method: str) -> Any:
        return self._quantizer or IdentityQuantizer()

    def _set_data(self, value: torch.Tensor) -> None:
        if isinstance(value, type(self)):
            super()._set_data(value)
        else:
            self._overwrite_all(value)

    def _copy_bytes_from(self, src: Any) -> bool:
        if not isinstance(src, GroupedTensor) or src.tensor_shapes != self.tensor_shapes:
            return False
        pairs = list(zip(self._members, src._members, strict=True))
        return all(member._copy_bytes_from(other) for member, other in pairs)

    def _reduce(self) -> Any:
        arguments = (type(self), tuple(self.shape), self.dtype, self._members, self._quantizer)
        return (_make_grouped_tensor_in_reduce_ex, arguments)


GroupedTensorStorage.tensor_class = GroupedTensor


def _empty_like(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A group of the same members."""
    dtype = kwargs.get("dtype") or tensor.dtype
    if dtype not in NOMINAL_DTYPES:
        return NotImplemented
    quantizer = tensor._quantizer
    if quantizer is not None:
        quantizer = quantizer.copy()
        quantizer.set_usage(**tensor.get_usages())
    device = kwargs.get("device") or tensor.device
    return type(tensor).make_grouped_tensor_with_shapes(
        tensor.num_tensors, tensor.tensor_shapes, quantizer, device, dtype
    )


def _new_empty(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Plain: a shape alone says nothing of members."""
    options = {"dtype": tensor.dtype, "device": tensor.device}
    return torch.empty(args[1], **{**options, **{k: v for k, v in kwargs.items() if v is not None}})


GroupedTensor._handlers = {
    **raw_views(
        lambda tensor, shape: bool(tensor._keeps_buffers(shape)),
        ValueError,
        "its own shape is required",
    ),
    aten.empty_like.default: _empty_like,
    aten.new_empty.default: _new_empty,
}


def _make_grouped_tensor_in_reduce_ex(
    cls: type[GroupedTensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    members: list[Any],
    quantizer: Quantizer | None,
) -> GroupedTensor:
    """Rebuild a pickled tensor. The name and place are part of the file format."""
    return cls(shape, dtype, members=members, quantizer=quantizer)
