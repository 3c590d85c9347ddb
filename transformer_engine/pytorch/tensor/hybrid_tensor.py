# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""One format for the rowwise copy, another for the columnwise one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arguments import check_choice, received
from .core_quantizer import check_destination
from .part_tensor import TensorPart
from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer, checked_attribute, is_noop
from .shared_view_tensor import SharedViewTensor, raw_views
from .storage.hybrid_tensor_storage import Half, HybridQuantizedTensorStorage
from .storage.quantized_storage import QuantizedTensorStorage
from .storage.write_tracking import count_write

__all__ = ["HybridQuantizedTensor", "HybridQuantizedTensorStorage", "HybridQuantizer"]

_SOURCES = ("original", "rowwise_dequantized")


class HybridQuantizer(Quantizer):
    """Quantizes along the rows with one quantizer and along the columns with another.

    Parameters
    ----------
    rowwise_quantizer, columnwise_quantizer : Quantizer
        Of any format; copied (delayed scaling: referring to the same scale and amax).
    columnwise_source : {"original", "rowwise_dequantized"}
        What the columnwise quantizer reads: the tensor, or the values of the rowwise copy, so that
        both copies differ by the columnwise rounding only.
    """

    rowwise_usage: bool = checked_attribute("rowwise_usage", "Make the rowwise copy.")
    columnwise_usage: bool = checked_attribute("columnwise_usage", "Make the columnwise copy.")
    internal: bool = checked_attribute("internal", "Give storages instead of tensors.")

    def __init__(
        self,
        *,
        rowwise_quantizer: Quantizer,
        columnwise_quantizer: Quantizer,
        columnwise_source: str = "original",
    ) -> None:
        owner = type(self).__name__
        halves = {
            "rowwise_quantizer": rowwise_quantizer,
            "columnwise_quantizer": columnwise_quantizer,
        }
        for name, quantizer in halves.items():
            if not isinstance(quantizer, Quantizer):
                raise TypeError(
                    f"{owner}: {name} is {received(quantizer)}; it must be a Quantizer."
                )
        check_choice(owner, "columnwise_source", columnwise_source, _SOURCES)
        super().__init__(rowwise=True, columnwise=True)
        self.rowwise_quantizer = _half(rowwise_quantizer, is_rowwise=True)
        self.columnwise_quantizer = _half(columnwise_quantizer, is_rowwise=False)
        self.columnwise_source = columnwise_source

    def copy(self) -> HybridQuantizer:
        """A quantizer of its own with copies of both halves."""
        other = HybridQuantizer(
            rowwise_quantizer=self.rowwise_quantizer,
            columnwise_quantizer=self.columnwise_quantizer,
            columnwise_source=self.columnwise_source,
        )
        other.set_usage(rowwise=self.rowwise_usage, columnwise=self.columnwise_usage)
        other.internal, other.optimize_for_gemm = self.internal, self.optimize_for_gemm
        return other

    def copy_for_tensor(self) -> HybridQuantizer:
        other = self.copy()
        other.rowwise_quantizer = self.rowwise_quantizer.copy_for_tensor()
        other.columnwise_quantizer = self.columnwise_quantizer.copy_for_tensor()
        return other

    def _value(self) -> tuple[Any, ...]:
        return (
            *(type(self), self.rowwise_quantizer, self.columnwise_quantizer),
            *(self.columnwise_source, self.rowwise_usage, self.columnwise_usage, self.internal),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HybridQuantizer) and self._value() == other._value()

    def __hash__(self) -> int:
        try:
            return hash(self._value())
        except AttributeError:
            return object.__hash__(self)  # torch.compile hashes half-made objects, too

    def is_requantization_safe(self) -> bool:
        """Whether both halves are."""
        return (
            self.rowwise_quantizer.is_requantization_safe()
            and self.columnwise_quantizer.is_requantization_safe()
        )

    def is_quantizable(self, tensor: torch.Tensor) -> bool:
        """Whether both halves take the tensor."""
        return self.rowwise_quantizer.is_quantizable(
            tensor
        ) and self.columnwise_quantizer.is_quantizable(tensor)

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Let both halves observe the tensor."""
        self.rowwise_quantizer.calibrate(tensor)
        self.columnwise_quantizer.calibrate(tensor)

    def fsdp_shard(self, shard: Any, group: Any) -> Any:
        """Both halves, each with what its format must have in common."""
        metadata = shard.get_metadata()
        for keyword, half in shard._halves():
            quantizer = (
                self.rowwise_quantizer
                if keyword == "rowwise_storage"
                else self.columnwise_quantizer
            )
            metadata[keyword] = quantizer.fsdp_shard(half, group)
        return HybridQuantizedTensorStorage(**metadata)

    # --- making and overwriting tensors ---------------------------------------------------------

    def _wrap(
        self, halves: tuple[Half, Half], shape: Any, dtype: torch.dtype, requires_grad: bool = False
    ) -> Any:
        keywords: dict[str, Any] = {
            "rowwise_storage": halves[0],
            "columnwise_storage": halves[1],
            "quantizer": self,
            "shape": torch.Size(shape),
            "dtype": dtype,
        }
        if self.internal:
            return HybridQuantizedTensorStorage(**keywords)
        return HybridQuantizedTensor(requires_grad=requires_grad, **keywords)

    def _check_usages(self, method: str) -> None:
        if not (self.rowwise_usage or self.columnwise_usage):
            raise ValueError(
                f"{type(self).__name__}.{method}: rowwise and columnwise usage are both off, so "
                "there is nothing to make. Turn one on with set_usage."
            )

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """Quantize without autograd into new buffers; see `Quantizer.quantize`."""
        self._check_usages("quantize")
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.detach()
        is_chained = self.columnwise_usage and self.columnwise_source == "rowwise_dequantized"
        rowwise = columnwise = None
        if self.rowwise_usage or is_chained:
            rowwise = self.rowwise_quantizer.quantize_impl(plain)
        if self.columnwise_usage:
            source = rowwise.dequantize() if is_chained and rowwise is not None else plain
            columnwise = self.columnwise_quantizer.quantize_impl(source)
        halves = (rowwise if self.rowwise_usage else None, columnwise)
        return self._wrap(halves, tensor.shape, tensor.dtype)

    def _make_empty(
        self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool, options: dict[str, Any]
    ) -> Any:
        self._check_usages("make_empty")
        halves = tuple(
            quantizer.make_empty(shape, dtype=dtype, **options) if is_wanted else None
            for quantizer, is_wanted in (
                (self.rowwise_quantizer, self.rowwise_usage),
                (self.columnwise_quantizer, self.columnwise_usage),
            )
        )
        return self._wrap((halves[0], halves[1]), shape, dtype, requires_grad)

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        """Overwrite both copies of a tensor; see `Quantizer.update_quantized`.

        The copies the tensor holds are written; those that only the quantizer makes are added.

        Raises
        ------
        TypeError, ValueError
            If `dst` is of another format or shape.
        """
        owner = f"{type(self).__name__}.update_quantized"
        check_destination(owner, src, dst, HybridQuantizedTensorStorage)
        if is_noop(owner, noop_flag):
            return dst
        plain = src.dequantize() if isinstance(src, QuantizedTensorStorage) else src.detach()
        is_chained = self.columnwise_source == "rowwise_dequantized"
        has_columnwise = dst._columnwise_storage is not None or self.columnwise_usage
        rowwise = dst._rowwise_storage
        if rowwise is not None:
            self.rowwise_quantizer.update_quantized(plain, rowwise)
        elif self.rowwise_usage or (is_chained and has_columnwise):
            rowwise = self.rowwise_quantizer.quantize_impl(plain)
            dst._rowwise_storage = rowwise if self.rowwise_usage else None
        if has_columnwise:
            source = rowwise.dequantize() if is_chained else plain
            self._update_columnwise(source, dst)
        dst._after_bytes_written()
        return dst

    def _update_columnwise(self, source: torch.Tensor, dst: HybridQuantizedTensorStorage) -> None:
        if dst._columnwise_storage is not None:
            self.columnwise_quantizer.update_quantized(source, dst._columnwise_storage)
        else:
            dst._columnwise_storage = self.columnwise_quantizer.quantize_impl(source)


def _half(quantizer: Quantizer, is_rowwise: bool) -> Quantizer:
    """A copy that makes storages of one copy."""
    half = quantizer.copy()
    half.set_usage(rowwise=is_rowwise, columnwise=not is_rowwise)
    half.internal = True
    return half


class HybridQuantizedTensor(SharedViewTensor, HybridQuantizedTensorStorage):  # type: ignore[misc]
    """A tensor of two copies in formats of their own.

    Parameters
    ----------
    shape : sequence of int
        Logical shape.
    dtype : torch.dtype
        Nominal dtype.
    rowwise_storage, columnwise_storage : QuantizedTensorStorage or None
        Each holds the copy of its name.
    quantizer : Quantizer, optional
        Copied; what in-place updates quantize with.
    requires_grad : bool, default False
        As of any tensor.
    """

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        rowwise_storage: Half,
        columnwise_storage: Half,
        quantizer: Quantizer | None = None,
        requires_grad: bool = False,
    ) -> HybridQuantizedTensor:
        held = rowwise_storage or columnwise_storage
        device = torch.get_default_device() if held is None else held.device
        self = QuantizedTensor._make_wrapper(cls, shape, dtype, device, requires_grad)
        own = None if quantizer is None else quantizer.copy_for_tensor()
        self._init_halves(rowwise_storage, columnwise_storage, own)
        self._check_halves()
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        values = "no data"
        if any(self.get_usages().values()):
            values = repr(self._dequantize_impl(self.dtype))
        names = [type(half).__name__ for _, half in self._halves()]
        grad = f", requires_grad={self.requires_grad}" if self.requires_grad else ""
        return f"{type(self).__name__}({', '.join(names)}, data={values}{grad})"

    def _alias(self, *, dtype: torch.dtype | None = None) -> HybridQuantizedTensor:
        # Halves of its own on the same buffers: a copy dropped from one alias stays in the others.
        metadata = self._with_halves(lambda half: half.get_metadata())
        return type(self)(**{**metadata, "dtype": dtype or self.dtype})

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        self._init_halves(metadata["rowwise_storage"], metadata["columnwise_storage"], quantizer)

    def _copy_bytes_from(self, src: Any) -> bool:
        if isinstance(src, TensorPart):
            src = src.extracted()
        if not isinstance(src, HybridQuantizedTensorStorage) or src._is_stale():
            return False  # copied by its values
        try:
            self.copy_from_storage(src)
        except (TypeError, ValueError):
            return False
        for buffer in self._buffers().values():
            count_write(buffer)
        self._after_bytes_written()
        return True

    def _reduce(self) -> Any:
        self._check_current("__reduce_ex__")
        halves = {keyword: (type(half), half.get_metadata()) for keyword, half in self._halves()}
        arguments = (type(self), tuple(self.shape), self.dtype, halves, self._quantizer)
        return (_make_hybrid_tensor_in_reduce_ex, arguments)


HybridQuantizedTensorStorage.tensor_class = HybridQuantizedTensor
HybridQuantizedTensor._handlers = raw_views(
    lambda tensor, shape: bool(tensor._keeps_buffers(shape)),
    ValueError,
    "one that both formats can share is required",
    can_flatten=False,  # values of the rows do not say what the columns hold
)


def _make_hybrid_tensor_in_reduce_ex(
    cls: type[HybridQuantizedTensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    halves: dict[str, tuple[Any, dict[str, Any]]],
    quantizer: Quantizer | None,
) -> HybridQuantizedTensor:
    """Rebuild a pickled tensor. The name and place are part of the file format."""
    storages = {keyword: made(**metadata) for keyword, (made, metadata) in halves.items()}
    return cls(
        shape,
        dtype,
        rowwise_storage=storages.get("rowwise_storage"),
        columnwise_storage=storages.get("columnwise_storage"),
        quantizer=quantizer,
    )
