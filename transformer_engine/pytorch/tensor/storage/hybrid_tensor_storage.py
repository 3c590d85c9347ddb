# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tensor whose rowwise copy is of one format and whose columnwise copy of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ...constants import TE_DType
from .quantized_storage import QuantizedTensorStorage
from .write_tracking import mark_written, stale_copy, stale_error, track_copies

Half = QuantizedTensorStorage | None


class HybridQuantizedTensorStorage(QuantizedTensorStorage):
    """Two storages of the same values.

    Parameters
    ----------
    rowwise_storage, columnwise_storage : QuantizedTensorStorage or None
        Each holds the copy of its name.
    quantizer : Quantizer, optional
        For in-place updates; kept as it is.
    shape : sequence of int, optional
        Logical shape; default that of a storage.
    dtype : torch.dtype, optional
        Nominal dtype; default that of a storage.
    """

    # The tensor class with this storage's data; set by the module that defines it.
    tensor_class: ClassVar[Any]
    _buffer_keywords: ClassVar[dict[str, str]] = {}

    _rowwise_storage: Half
    _columnwise_storage: Half

    def __init__(
        self,
        *,
        rowwise_storage: Half,
        columnwise_storage: Half,
        quantizer: Any = None,
        shape: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._init_halves(rowwise_storage, columnwise_storage, quantizer)
        held = rowwise_storage or columnwise_storage
        if held is None and (shape is None or dtype is None):
            raise ValueError(
                f"{type(self).__name__}: rowwise_storage and columnwise_storage are None; without "
                "one, shape and dtype are required."
            )
        self._shape = torch.Size(held.size() if held is not None and shape is None else shape)
        self._dtype = held._dtype if held is not None and dtype is None else dtype  # type: ignore[assignment]
        self._check_halves()

    def _check_halves(self) -> None:
        for keyword, half in self._halves():
            if half.size() != self._shape:
                raise ValueError(
                    f"{type(self).__name__}: {keyword} has shape {tuple(half.size())}; shape is "
                    f"{tuple(self._shape)}, that of both halves is required. Pass views of them."
                )

    def _init_halves(self, rowwise: Half, columnwise: Half, quantizer: Any) -> None:
        self._rowwise_storage = rowwise
        self._columnwise_storage = columnwise
        self._quantizer = quantizer
        track_copies(*self._tracked())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(shape={tuple(self._shape)}, rowwise={self._rowwise_storage!r}, "
            f"columnwise={self._columnwise_storage!r})"
        )

    def _halves(self) -> Iterator[tuple[str, QuantizedTensorStorage]]:
        """Keyword and storage of the halves that are held."""
        for keyword, half in (
            ("rowwise_storage", self._rowwise_storage),
            ("columnwise_storage", self._columnwise_storage),
        ):
            if half is not None:
                yield keyword, half

    def _buffers(self) -> dict[str, torch.Tensor | None]:
        return {
            f"{keyword}.{name}": buffer
            for keyword, half in self._halves()
            for name, buffer in half._buffers().items()
        }

    def get_usages(self) -> dict[str, bool]:
        return {
            "rowwise": _holds(self._rowwise_storage, "rowwise"),
            "columnwise": _holds(self._columnwise_storage, "columnwise"),
        }

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drop (False) or keep (None) the two copies, or insist (True) that they are there.

        Raises
        ------
        RuntimeError
            If a demanded copy is not there: neither is made from the other. Nothing is changed.
        """
        rowwise_usage, columnwise_usage = self._checked_usages(rowwise_usage, columnwise_usage)
        held = self.get_usages()
        keeps = (rowwise_usage is not False, columnwise_usage is not False)
        self._check_current("update_usage", *keeps)
        for name, demanded in (("rowwise", rowwise_usage), ("columnwise", columnwise_usage)):
            if demanded and not held[name]:
                raise RuntimeError(
                    f"{type(self).__name__}.update_usage: {name}_usage is True, but there is no "
                    f"{name} copy, and it is not made from the other one. Quantize again."
                )
        if rowwise_usage is False:
            self._rowwise_storage = None
        if columnwise_usage is False:
            self._columnwise_storage = None

    def _native_operand(self) -> tuple[Any, Any]:
        """(rowwise, columnwise) as native steps read them, each from its half."""
        self._check_current("_native_operand")
        rowwise = columnwise = None
        if self._rowwise_storage is not None:
            rowwise = _operand_of(self._rowwise_storage)[0]
        if self._columnwise_storage is not None:
            other, columnwise = _operand_of(self._columnwise_storage)
            if columnwise is None and other is not None and other[3] == 0:
                columnwise = other  # high precision serves products in both directions
        return rowwise, columnwise

    def _tracked(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """A data buffer of each half."""
        return _first_buffer(self._rowwise_storage), _first_buffer(self._columnwise_storage)

    def _is_stale(self) -> bool:
        return stale_copy(*self._tracked()) is not None

    def _check_current(self, method: str, rowwise: bool = True, columnwise: bool = True) -> None:
        """Refuse a copy, of those to be read, that is older than the other one."""
        stale = stale_copy(*self._tracked())
        if (
            stale == "one"
            or (stale == "rowwise" and rowwise)
            or (stale == "columnwise" and columnwise)
        ):
            raise stale_error(f"{type(self).__name__}.{method}", stale)

    def _after_bytes_written(self) -> None:
        mark_written(*self._tracked())

    def get_data_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """(data of the rowwise copy, data of the columnwise copy)."""
        rowwise = self._rowwise_storage
        columnwise = self._columnwise_storage
        return (
            None if rowwise is None else rowwise.get_data_tensors()[0],
            None if columnwise is None else columnwise.get_data_tensors()[-1],
        )

    def get_metadata(self) -> dict[str, Any]:
        return {
            "rowwise_storage": self._rowwise_storage,
            "columnwise_storage": self._columnwise_storage,
            "quantizer": self._quantizer,
            "shape": self._shape,
            "dtype": self._dtype,
        }

    def _with_halves(self, make: Callable[[QuantizedTensorStorage], dict[str, Any]]) -> Any:
        """Metadata whose halves are rebuilt from metadata that a function gives."""
        metadata = self.get_metadata()
        for keyword, half in self._halves():
            metadata[keyword] = type(half)(**make(half))
        return metadata

    def _metadata_around(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        metadata = self.get_metadata()
        for keyword, half in self._halves():
            own = _buffers_of(keyword, buffers)
            metadata[keyword] = type(half)(**half._metadata_around(own))
        return metadata

    def _mapped_metadata(self, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        self._check_current("clone")
        mapped: dict[str, Any] = self._with_halves(lambda half: half._mapped_metadata(function))
        return mapped

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        return all(half._keeps_buffers(shape) for _, half in self._halves())

    def _viewed_metadata(self, shape: Sequence[int], view: Callable[..., Any]) -> dict[str, Any]:
        metadata = self._with_halves(lambda half: half._viewed_metadata(shape, view))
        return {**metadata, "shape": torch.Size(shape)}

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy both halves; their classes, shapes and settings must agree.

        Raises
        ------
        TypeError, ValueError
            If they do not.
        """
        self._check_copyable(src, "copy_from_storage")
        src._check_current("copy_from_storage")  # type: ignore[attr-defined]  # just checked
        other = dict(src._halves())  # type: ignore[attr-defined]  # just checked
        # All bytes first: of a source on the same data, a half alone would look older.
        for keyword, half in self._halves():
            half._copy_buffers(other[keyword])
        for _, half in self._halves():
            half._after_bytes_written()
        self._after_bytes_written()

    def _check_copyable(self, src: QuantizedTensorStorage, method: str) -> None:
        super()._check_copyable(src, method)
        other = dict(src._halves())  # type: ignore[attr-defined]  # just checked
        for keyword, half in self._halves():
            half._check_copyable(other[keyword], method)

    # Rows as parts, of both halves.

    def _row_block(self) -> int | None:
        blocks = [half._row_block() for _, half in self._halves()]
        known = [block for block in blocks if block is not None]
        return max(known) if known and len(known) == len(blocks) else None

    def _rows(self, first: int, last: int, shape: Sequence[int]) -> dict[str, Any]:
        self._check_current("narrow")
        metadata = self._with_halves(lambda half: half._rows(first, last, shape))
        return {**metadata, "shape": torch.Size(shape)}

    def _put_rows(self, first: int, last: int, rows: Any) -> None:
        other = dict(rows._halves())
        for keyword, half in self._halves():
            half._put_rows(first, last, other[keyword])
            half._after_bytes_written()

    def _common_amaxes(self) -> list[torch.Tensor]:
        return [amax for _, half in self._halves() for amax in half._common_amaxes()]

    def _make_current(self, method: str) -> None:
        self._check_current(method)

    # Rows of several ranks: each half gathers its copy, the buffers' names begin with its keyword.

    def _gathered_halves(
        self, usages: dict[str, bool]
    ) -> Iterator[tuple[str, QuantizedTensorStorage]]:
        for keyword, half in self._halves():
            if usages[keyword.removesuffix("_storage")]:
                yield keyword, half

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        return tuple(
            f"{keyword}.{name}"
            for keyword, half in self._gathered_halves(usages)
            for name in half.fsdp_buffer_fields(half.get_usages())
        )

    def fsdp_extract_buffers(self, usages: dict[str, bool]) -> dict[str, torch.Tensor]:
        self._check_current("fsdp_pre_all_gather", usages["rowwise"], usages["columnwise"])
        return {
            f"{keyword}.{name}": buffer
            for keyword, half in self._gathered_halves(usages)
            for name, buffer in half.fsdp_extract_buffers(half.get_usages()).items()
        }

    def fsdp_assign_gathered(
        self, gathered: dict[str, torch.Tensor], usages: dict[str, bool], shape: torch.Size
    ) -> dict[str, Any]:
        metadata = {**self.get_metadata(), "rowwise_storage": None, "columnwise_storage": None}
        for keyword, half in self._gathered_halves(usages):
            own = _buffers_of(keyword, gathered)
            fields = half.fsdp_assign_gathered(own, half.get_usages(), shape)
            metadata[keyword] = type(half)(**{**fields, "shape": shape})
        return metadata

    def prepare_for_saving(
        self,
    ) -> tuple[list[torch.Tensor | None], HybridQuantizedTensorStorage]:
        """Move the buffers of both halves out, for `ctx.save_for_backward`."""
        buffers: list[torch.Tensor | None] = []
        for _, half in self._halves():
            buffers.extend(half.prepare_for_saving()[0])
        return buffers, self

    def restore_from_saved(self, tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        for _, half in self._halves():
            tensors = half.restore_from_saved(tensors)
        return tensors

    def _dequantize_impl(self, dtype: torch.dtype) -> torch.Tensor:
        held = self._rowwise_storage or self._columnwise_storage
        if held is None:
            raise RuntimeError(
                f"{type(self).__name__}.dequantize: the tensor holds no data; it was dropped."
            )
        self._check_current("dequantize", columnwise=False)
        return held.dequantize(dtype=dtype)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A plain tensor of the values, those of the rowwise copy if it is held."""
        return self._dequantize_impl(dtype or self._dtype)


def _operand_of(half: QuantizedTensorStorage) -> tuple[Any, Any]:
    """What native steps read of a half: for a class that says nothing of it, its values."""
    if hasattr(half, "_native_operand"):
        operand: tuple[Any, Any] = half._native_operand()
        return operand
    plain = half.dequantize()
    return (plain, None, None, 0, int(TE_DType[plain.dtype]), 0), None


def _holds(half: Half, name: str) -> bool:
    return half is not None and half.get_usages()[name]


def _first_buffer(half: Half) -> torch.Tensor | None:
    if half is None:
        return None
    return next((buffer for buffer in half._buffers().values() if buffer is not None), None)


def _buffers_of(keyword: str, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of one half, under its own names."""
    prefix = f"{keyword}."
    return {k.removeprefix(prefix): b for k, b in buffers.items() if k.startswith(prefix)}
