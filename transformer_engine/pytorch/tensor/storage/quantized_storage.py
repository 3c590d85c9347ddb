# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Base of all quantized storages, and saving them for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from ...arguments import check_flag

_StorageT = TypeVar("_StorageT", bound="QuantizedTensorStorage")


class QuantizedTensorStorage:
    """Buffers, scales and settings of a quantized tensor.

    A format derives a storage class from this and a tensor class from the storage and
    `QuantizedTensor`. Each lists its buffers once, in `_buffer_keywords`.

    Attributes
    ----------
    _shape : torch.Size
        Logical shape, also while no rowwise data is held.
    _dtype : torch.dtype
        Nominal dtype: what `dequantize` gives by default.
    _quantizer : Quantizer or None
        What in-place updates quantize with.
    """

    # Field -> constructor keyword of every buffer, data before scales.
    _buffer_keywords: ClassVar[dict[str, str]] = {}

    _shape: torch.Size
    _dtype: torch.dtype
    _quantizer: Any

    # --- what a format defines -----------------------------------------------------------------

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A plain tensor of the values, in the nominal dtype unless another is given."""
        raise NotImplementedError(f"{type(self).__name__}.dequantize is not implemented.")

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Demand (True), drop (False) or keep as they are (None) the two copies."""
        raise NotImplementedError(f"{type(self).__name__}.update_usage is not implemented.")

    def get_usages(self) -> dict[str, bool]:
        """Which copies are there: ``{"rowwise": bool, "columnwise": bool}``."""
        raise NotImplementedError(f"{type(self).__name__}.get_usages is not implemented.")

    def get_metadata(self) -> dict[str, Any]:
        """Keywords that rebuild the storage around the same buffers."""
        raise NotImplementedError(f"{type(self).__name__}.get_metadata is not implemented.")

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        """Whether a view of a shape (of as many elements) can share the buffers."""
        return False

    def _viewed_metadata(self, shape: Sequence[int], view: Callable[..., Any]) -> dict[str, Any]:
        """Metadata of such a view; `view` calls a torch operation on a buffer."""
        raise NotImplementedError(f"{type(self).__name__}: this format has no views.")

    # Rows of the matrix [product of the leading axes, last axis] as parts that are written to.

    def _row_block(self) -> int | None:
        """Parts that begin and end at its multiples are tensors of this format; None: no parts."""
        return None

    def _rows(self, first: int, last: int, shape: Sequence[int]) -> dict[str, Any]:
        """Metadata, in some shape, of copies of the rows from `first` to before `last`."""
        raise NotImplementedError(f"{type(self).__name__}: this format has no parts.")

    def _put_rows(self, first: int, last: int, rows: Any) -> None:
        """Take over the bytes of such copies."""
        raise NotImplementedError(f"{type(self).__name__}: this format has no parts.")

    def _common_amaxes(self) -> list[torch.Tensor]:
        """What all rows are scaled by: those of a part with another one would be other values."""
        return []

    def _separate_copies(self) -> list[Any]:
        """Storages on the same buffers, one for each that is quantized from values of its own."""
        return [self]

    def _make_current(self, method: str) -> None:
        """Before a part is written: what a write elsewhere left old in one copy is made again."""

    def _tracked(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """A data buffer of each copy."""
        return None, None

    # Rows of several ranks under FSDP2; `usages` are the copies to gather, all of them held.

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        """Names of the buffers that are gathered."""
        raise NotImplementedError(f"{type(self).__name__}.fsdp_buffer_fields is not implemented.")

    def fsdp_extract_buffers(self, usages: dict[str, bool]) -> dict[str, torch.Tensor]:
        """Those buffers by name, without padding of rows."""
        return {name: getattr(self, name) for name in self.fsdp_buffer_fields(usages)}

    def fsdp_assign_gathered(
        self, gathered: dict[str, torch.Tensor], usages: dict[str, bool], shape: torch.Size
    ) -> dict[str, Any]:
        """Metadata of the whole, of a shape, around gathered buffers."""
        raise NotImplementedError(f"{type(self).__name__}.fsdp_assign_gathered is not implemented.")

    # --- common to all formats -----------------------------------------------------------------

    def size(self, dim: int | None = None) -> Any:
        """The logical shape, or one of its extents."""
        return self._shape if dim is None else self._shape[dim]

    @property
    def shape(self) -> torch.Size:
        """The logical shape."""
        return self._shape

    def dim(self) -> int:
        """Number of logical axes."""
        return len(self._shape)

    def numel(self) -> int:
        """Number of elements."""
        return self._shape.numel()

    @property
    def device(self) -> torch.device:
        """Where the buffers are."""
        for buffer in self._buffers().values():
            if buffer is not None:
                return buffer.device
        raise RuntimeError(
            f"{type(self).__name__}.device: the storage holds no buffers; they were moved out or "
            "dropped."
        )

    def quantize_(
        self: _StorageT, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None
    ) -> _StorageT:
        """Overwrite the contents in place.

        Parameters
        ----------
        tensor : torch.Tensor
            Plain or quantized, of the same shape.
        noop_flag : torch.Tensor, optional
            float32 [1]; not 0 leaves everything untouched.

        Raises
        ------
        RuntimeError
            If there is no quantizer (for example after unpickling).
        """
        self._require_quantizer("quantize_").update_quantized(tensor, self, noop_flag=noop_flag)
        return self

    def _require_quantizer(self, method: str) -> Any:
        if self._quantizer is None:
            raise RuntimeError(
                f"{type(self).__name__}.{method}: the tensor has no quantizer, so new values "
                "cannot be quantized. Copy it into a tensor that has one, or set _quantizer."
            )
        return self._quantizer

    def _checked_usages(
        self, rowwise_usage: bool | None, columnwise_usage: bool | None
    ) -> tuple[bool | None, bool | None]:
        """The arguments of `update_usage` as bools or None."""
        owner = f"{type(self).__name__}.update_usage"
        return (
            None if rowwise_usage is None else check_flag(owner, "rowwise_usage", rowwise_usage),
            None
            if columnwise_usage is None
            else check_flag(owner, "columnwise_usage", columnwise_usage),
        )

    @classmethod
    def _check_buffer_shape(
        cls, keyword: str, buffer: torch.Tensor, needed: Sequence[int], shape: Sequence[int]
    ) -> None:
        """Refuse a constructor's buffer whose shape is not what the logical shape asks for."""
        if buffer.shape != torch.Size(needed):
            raise ValueError(
                f"{cls.__name__}: {keyword} has shape {tuple(buffer.shape)}; shape {tuple(shape)} "
                f"asks for {tuple(needed)}. Pass the shape that the buffers "
                "are of."
            )

    def _buffers(self) -> dict[str, torch.Tensor | None]:
        return {name: getattr(self, name) for name in self._buffer_keywords}

    def _mapped_metadata(self, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        """Metadata with a function applied to every buffer that is held."""
        metadata = self.get_metadata()
        for name, buffer in self._buffers().items():
            metadata[self._buffer_keywords[name]] = None if buffer is None else function(buffer)
        return metadata

    def _metadata_around(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Metadata around other buffers, by field; None for those that are not given."""
        metadata = self.get_metadata()
        metadata.update({key: buffers.get(name) for name, key in self._buffer_keywords.items()})
        return metadata

    def get_data_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The raw data buffers, rowwise first."""
        raise NotImplementedError(f"{type(self).__name__}.get_data_tensors is not implemented.")

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy the buffers of another storage of the same class, shape and held copies.

        Raises
        ------
        TypeError, ValueError
            If they differ in class, shape, settings, or in which buffers they hold.
        """
        self._check_copyable(src, "copy_from_storage")
        self._copy_buffers(src)
        self._after_bytes_written()

    def _copy_buffers(self, src: QuantizedTensorStorage) -> None:
        """The bytes of a source that fits, before anyone is told."""
        other = src._buffers()
        for name, buffer in self._buffers().items():
            source = other[name]
            if buffer is not None and source is not None:
                buffer.copy_(source)

    def _check_copyable(self, src: QuantizedTensorStorage, method: str) -> None:
        """Refuse a source whose buffers do not fit."""
        owner = f"{type(self).__name__}.{method}"
        if not isinstance(src, _storage_class(self)):
            raise TypeError(
                f"{owner}: src is a {type(src).__name__}; the same storage class is required. Use "
                "quantize_ to convert."
            )
        own, other = self._buffers(), src._buffers()
        held = {name for name, buffer in own.items() if buffer is not None}
        offered = {name for name, buffer in other.items() if buffer is not None}
        if held != offered or self._shape != src._shape:
            raise ValueError(
                f"{owner}: src has shape {tuple(src._shape)} and usages {src.get_usages()}; shape "
                f"{tuple(self._shape)} and usages {self.get_usages()} are required. Use quantize_ "
                "to convert."
            )

    def _after_bytes_written(self) -> None:
        """Called when all held buffers agree again after a raw copy."""

    def clear(self) -> None:
        """Free the memory: every buffer becomes empty."""
        for buffer in self._buffers().values():
            if buffer is not None:
                buffer.data = buffer.new_empty(0)

    def prepare_for_saving(
        self: _StorageT,
    ) -> tuple[list[torch.Tensor | None], _StorageT]:
        """Move the buffers out, for `ctx.save_for_backward`; the fields become None."""
        buffers = list(self._buffers().values())
        for name in self._buffer_keywords:
            setattr(self, name, None)
        return buffers, self

    def restore_from_saved(self, tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Take the buffers back from the front of a list; return the rest of it."""
        count = len(self._buffer_keywords)
        for name, buffer in zip(self._buffer_keywords, tensors[:count], strict=True):
            setattr(self, name, buffer)
        return tensors[count:]


def _storage_class(storage: QuantizedTensorStorage) -> type[QuantizedTensorStorage]:
    """The class that lists the buffers: shared by a format's storage and tensor class."""
    for cls in type(storage).__mro__:
        if "_buffer_keywords" in vars(cls):
            return cls
    return type(storage)


Saveable = torch.Tensor | QuantizedTensorStorage | None


def prepare_for_saving(
    *tensors: Saveable,
) -> tuple[list[torch.Tensor | None], list[QuantizedTensorStorage | None]]:
    """Split tensors and storages into plain tensors for `save_for_backward` and the rest.

    A tensor subclass is saved as it is: its buffers belong to the user. A storage gives its
    buffers away and must not be used until they are restored.

    Returns
    -------
    tuple of two lists
        What to save, and the objects for `restore_from_saved`.
    """
    saved: list[torch.Tensor | None] = []
    objects: list[QuantizedTensorStorage | None] = []
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            saved.append(tensor)
            objects.append(None)
        else:
            buffers, storage = tensor.prepare_for_saving()
            saved.extend(buffers)
            objects.append(storage)
    return saved, objects


def restore_from_saved(
    tensors: Sequence[QuantizedTensorStorage | None],
    saved_tensors: Sequence[torch.Tensor | None],
    return_saved_tensors: bool = False,
) -> Any:
    """Undo `prepare_for_saving`.

    Parameters
    ----------
    tensors : sequence
        The objects.
    saved_tensors : sequence
        What was saved.
    return_saved_tensors : bool, default False
        Return what is left of `saved_tensors` too.

    Returns
    -------
    list, or (list, list)
        The tensors and storages in their old order.
    """
    rest = list(saved_tensors)
    restored: list[Saveable] = []
    for storage in tensors:
        if storage is None:
            restored.append(rest.pop(0))
        else:
            rest = storage.restore_from_saved(rest)
            restored.append(storage)
    return (restored, rest) if return_saved_tensors else restored


def restore_from_func_ctx(ctx: Any) -> list[Saveable]:
    """`restore_from_saved` from an autograd context, whose object list is cleared.

    Parameters
    ----------
    ctx : object
        With ``saved_tensors`` and ``tensor_objects`` (the second list of `prepare_for_saving`).

    Raises
    ------
    RuntimeError
        If the objects were taken before.
    """
    objects = getattr(ctx, "tensor_objects", None)
    if objects is None:
        raise RuntimeError(
            "restore_from_func_ctx: ctx has no tensor_objects; they were restored before, or never "
            "set. Assign the second result of prepare_for_saving to ctx.tensor_objects."
        )
    restored: list[Saveable] = restore_from_saved(objects, ctx.saved_tensors)
    ctx.tensor_objects = None
    return restored
