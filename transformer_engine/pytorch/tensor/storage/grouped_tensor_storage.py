# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several quantized matrices whose buffers lie one behind the other in packed ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch

from .quantized_storage import QuantizedTensorStorage

# Fields that formats have for the same thing.
_ALIASES = {
    "rowwise_data": ("_rowwise_data", "_data", "_hp_data"),
    "columnwise_data": ("_columnwise_data", "_transpose"),
    "scale_inv": ("_rowwise_scale_inv", "_scale_inv"),
    "columnwise_scale_inv": ("_columnwise_scale_inv",),
}


def _packed_view(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The flat tensor that parts lie in one behind the other; None if they do not."""
    first = parts[0]
    address, end = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        is_next = part.untyped_storage().data_ptr() == address and part.storage_offset() == end
        if not (is_next and part.is_contiguous() and part.dtype == first.dtype):
            return None
        end += part.numel()
    total = end - first.storage_offset()
    return first.as_strided((total,), (1,), first.storage_offset())


def _pack(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A packed copy of parts, and its views in their place."""
    packed = torch.cat([part.reshape(-1) for part in parts])
    views, begin = [], 0
    for part in parts:
        views.append(packed[begin : begin + part.numel()].view(part.shape))
        begin += part.numel()
    return packed, views


def _packed_buffer(name: str) -> Any:
    def read(self: GroupedTensorStorage) -> torch.Tensor | None:
        return next((self._packed[f] for f in _ALIASES[name] if f in self._packed), None)

    return property(read, doc="Packed, one axis; None if the members have none.")


class GroupedTensorStorage(QuantizedTensorStorage):
    """Members of one format, packed.

    Parameters
    ----------
    members : sequence of QuantizedTensor
        Of one class; their buffers are moved into packed ones unless they lie there already.
    quantizer : Quantizer, optional
        What the members are quantized with; None for high precision.
    dtype : torch.dtype, optional
        Nominal dtype; default that of the members.
    shape : optional
        Taken from the members.

    Attributes
    ----------
    rowwise_data, columnwise_data, scale_inv, columnwise_scale_inv : torch.Tensor or None
        Packed buffers, one axis.
    num_tensors : int
        Number of members.
    tensor_shapes : list of tuple
        Their shapes.
    """

    _buffer_keywords: ClassVar[dict[str, str]] = {}
    # The tensor class with this storage's data; set by the module that defines it.
    tensor_class: ClassVar[Any]

    _members: list[Any]
    _packed: dict[str, torch.Tensor]

    def __init__(
        self,
        *,
        members: Sequence[Any],
        quantizer: Any = None,
        dtype: torch.dtype | None = None,
        shape: Any = None,
    ) -> None:
        self._init_members(members, quantizer)
        self._shape = shape_of_group(members)
        self._dtype = dtype or members[0].dtype

    def _init_members(self, members: Sequence[Any], quantizer: Any) -> None:
        self._quantizer = quantizer
        self._members = list(members)
        for member in self._members:
            if member._quantizer is None and quantizer is not None:  # unpickled
                member._quantizer = quantizer.copy_for_tensor()
        self._pack_members()

    def _pack_members(self) -> None:
        """Let the members' buffers lie in packed ones."""
        self._packed = {}
        buffers = [member._buffers() for member in self._members]
        for name, first in buffers[0].items():
            parts = [held[name] for held in buffers]
            if first is None or any(part is None for part in parts):
                continue
            held_parts = [part for part in parts if part is not None]
            packed = _packed_view(held_parts)
            if packed is None:
                packed, views = _pack(held_parts)
                for member, view in zip(self._members, views, strict=True):
                    setattr(member, name, view)
            self._packed[name] = packed

    rowwise_data = _packed_buffer("rowwise_data")
    columnwise_data = _packed_buffer("columnwise_data")
    scale_inv = _packed_buffer("scale_inv")
    columnwise_scale_inv = _packed_buffer("columnwise_scale_inv")

    @property
    def quantizer(self) -> Any:
        """What the members are quantized with; None for high precision."""
        return self._quantizer

    @property
    def num_tensors(self) -> int:
        """Number of members."""
        return len(self._members)

    @property
    def tensor_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the members."""
        return [tuple(member.shape) for member in self._members]

    @property
    def quantized_tensors(self) -> list[Any]:
        """The members: quantized tensors, or plain ones in high precision, on packed buffers."""
        if self._quantizer is None:
            return [member._hp_data for member in self._members]
        return list(self._members)

    def split_into_quantized_tensors(self) -> list[Any]:
        """`quantized_tensors`; writing to one writes to the group."""
        return self.quantized_tensors

    def all_same_first_dim(self) -> bool:
        """Whether all members have the same number of rows."""
        return len({shape[0] for shape in self.tensor_shapes}) == 1

    def all_same_last_dim(self) -> bool:
        """Whether all members have the same number of columns."""
        return len({shape[-1] for shape in self.tensor_shapes}) == 1

    def all_same_shape(self) -> bool:
        """Whether all members have the same shape."""
        return len(set(self.tensor_shapes)) == 1

    def varying_both_dims(self) -> bool:
        """Whether members differ in rows and in columns."""
        return not (self.all_same_first_dim() or self.all_same_last_dim())

    def __repr__(self) -> str:
        name = "high precision" if self._quantizer is None else type(self._members[0]).__name__
        return f"{type(self).__name__}({name}, tensor_shapes={self.tensor_shapes})"

    # --- what every storage has -----------------------------------------------------------------

    def _buffers(self) -> dict[str, torch.Tensor | None]:
        return dict(self._packed)

    def get_usages(self) -> dict[str, bool]:
        usages: dict[str, bool] = self._members[0].get_usages()
        return usages

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """As of the members' format; the first member's error is raised before any is changed."""
        for member in self._members:
            member.update_usage(rowwise_usage, columnwise_usage)
        self._pack_members()

    def get_data_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """(packed rowwise data, packed columnwise data)."""
        return self.rowwise_data, self.columnwise_data

    def get_metadata(self) -> dict[str, Any]:
        return {
            "members": list(self._members),
            "quantizer": self._quantizer,
            "shape": self._shape,
            "dtype": self._dtype,
        }

    def _mapped_metadata(self, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        members = [type(m)(**m._mapped_metadata(function)) for m in self._members]
        return {**self.get_metadata(), "members": members}

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        return shape == self._shape

    def _viewed_metadata(self, shape: Sequence[int], view: Callable[..., Any]) -> dict[str, Any]:
        return {**self.get_metadata(), "members": [member._alias() for member in self._members]}

    def _check_copyable(self, src: QuantizedTensorStorage, method: str) -> None:
        super()._check_copyable(src, method)
        pairs = zip(self._members, src._members, strict=False)  # type: ignore[attr-defined]
        for member, other in pairs:
            member._check_copyable(other, method)

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], GroupedTensorStorage]:
        """Move the members' buffers out, for `ctx.save_for_backward`."""
        buffers: list[torch.Tensor | None] = []
        for member in self._members:
            buffers.extend(member.prepare_for_saving()[0])
        self._packed = {}
        return buffers, self

    def restore_from_saved(self, tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        for member in self._members:
            tensors = member.restore_from_saved(tensors)
        self._pack_members()
        return tensors

    # --- values ---------------------------------------------------------------------------------

    def _dequantize_impl(self, dtype: torch.dtype) -> torch.Tensor:
        flat = [member._dequantize_impl(dtype).reshape(-1) for member in self._members]
        return torch.cat(flat).view(self._shape)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The members' values one below the other, [sum of rows, columns]; flat if they differ."""
        return self._dequantize_impl(dtype or self._dtype)

    def quantize(self, tensors: Iterable[torch.Tensor]) -> list[Any]:
        """Overwrite the members; returns them.

        Parameters
        ----------
        tensors : iterable of torch.Tensor
            One for each member, of its shape.

        Raises
        ------
        ValueError
            For another number of tensors or another shape; nothing is written then.
        """
        given = list(tensors)
        shapes = [tuple(tensor.shape) for tensor in given]
        if shapes != self.tensor_shapes:
            raise ValueError(
                f"{type(self).__name__}.quantize: tensors have shapes {shapes}; "
                f"{self.tensor_shapes} are required."
            )
        for member, tensor in zip(self._members, given, strict=True):
            member.quantize_(tensor)
        self._pack_members()  # where a copy was added
        return self.quantized_tensors

    def _overwrite_all(self, tensor: torch.Tensor) -> None:
        """Write values of the shape of the whole."""
        if tensor.shape != self._shape:
            raise ValueError(
                f"{type(self).__name__}.quantize_: tensor has shape {tuple(tensor.shape)}; "
                f"{tuple(self._shape)} is required."
            )
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensorStorage) else tensor
        counts = [math.prod(shape) for shape in self.tensor_shapes]
        parts = plain.detach().reshape(-1).split(counts)
        self.quantize(
            part.view(shape) for part, shape in zip(parts, self.tensor_shapes, strict=True)
        )

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None) -> Any:
        """Overwrite all members from values of the shape of the whole."""
        if noop_flag is None or noop_flag.item() == 0:
            self._overwrite_all(tensor)
        return self


def shape_of_group(members: Sequence[Any]) -> torch.Size:
    """[sum of rows, columns] of matrices; [number of elements] where the columns differ."""
    shapes = [tuple(member.shape) for member in members]
    if len({shape[-1] for shape in shapes}) == 1:
        return torch.Size((sum(math.prod(shape[:-1]) for shape in shapes), shapes[0][-1]))
    return torch.Size((sum(math.prod(shape) for shape in shapes),))
