# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 bytes with one scale: value = byte decoded as E4M3 or E5M2, times scale_inv.

GEMMs on the CPU (as on Hopper) contract along the last axis of both operands, so the columnwise
copy is the physical transpose, uint8 [K, M], with K the last axis and M the product of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from ...constants import DType, TE_DType
from ...cpp_extensions import cast as tex
from .quantized_storage import QuantizedTensorStorage
from .write_tracking import (
    count_write,
    follow,
    mark_written,
    share_state,
    stale_copy,
    stale_error,
    track_copies,
    version_of,
)

_COPY_KIND = 1  # CopyKind::kTensor in csrc/operand.h
_DEQUANTIZED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Float8TensorStorage(QuantizedTensorStorage):
    """FP8 data of one tensor.

    Parameters
    ----------
    data : torch.Tensor or None
        uint8, the logical shape.
    fp8_scale_inv : torch.Tensor
        float32 [1].
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    data_transpose : torch.Tensor, optional
        uint8 [K, M].
    quantizer : Quantizer, optional
        For in-place updates; kept as it is.
    shape : sequence of int, optional
        Logical shape; needed only without `data` (default then [M, K]).
    dtype : torch.dtype, default torch.float32
        Nominal dtype.
    """

    _buffer_keywords: ClassVar[dict[str, str]] = {
        "_data": "data",
        "_transpose": "data_transpose",
        "_scale_inv": "fp8_scale_inv",
    }

    # The tensor class with this storage's data; set by the module that defines it.
    tensor_class: ClassVar[Any]

    _data: torch.Tensor | None
    _transpose: torch.Tensor | None
    _scale_inv: torch.Tensor
    _fp8_dtype: DType
    # The tensor that the bytes are a part of, or another order of, with all its bytes as `_data`;
    # None for a tensor of its own. Both share one scale: a write to the part casts the whole again.
    _whole: Float8TensorStorage | None

    def __init__(
        self,
        *,
        data: torch.Tensor | None,
        fp8_scale_inv: torch.Tensor,
        fp8_dtype: DType,
        data_transpose: torch.Tensor | None = None,
        quantizer: Any = None,
        shape: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._init_storage(
            data=data,
            fp8_scale_inv=fp8_scale_inv,
            fp8_dtype=fp8_dtype,
            data_transpose=data_transpose,
            quantizer=quantizer,
        )
        if shape is None:
            if data is not None:
                shape = data.shape
            elif data_transpose is not None:
                shape = data_transpose.shape[::-1]
            else:
                raise ValueError(
                    f"{type(self).__name__}: data, data_transpose and shape are all None; one of "
                    "them is required to know the shape."
                )
        self._shape = torch.Size(shape)
        self._dtype = dtype
        self._check_sizes(self._shape, data, data_transpose)

    @classmethod
    def _check_sizes(
        cls, shape: Sequence[int], data: torch.Tensor | None, transpose: torch.Tensor | None
    ) -> None:
        """Refuse buffers that are not of a logical shape."""
        for name, buffer in (("data", data), ("data_transpose", transpose)):
            if buffer is not None and buffer.numel() != math.prod(shape):
                raise ValueError(
                    f"{cls.__name__}: {name} has shape {tuple(buffer.shape)}; as many elements as "
                    f"in shape {tuple(shape)} are required."
                )

    def _init_storage(
        self,
        *,
        data: torch.Tensor | None,
        fp8_scale_inv: torch.Tensor,
        fp8_dtype: DType,
        data_transpose: torch.Tensor | None,
        quantizer: Any,
    ) -> None:
        self._data = data
        self._transpose = data_transpose
        self._is_transpose_discarded = False
        self._scale_inv = fp8_scale_inv
        self._fp8_dtype = DType.cast(fp8_dtype)
        self._quantizer = quantizer
        self._whole = None
        track_copies(data, data_transpose)
        is_unmarked = data_transpose is not None and not hasattr(data_transpose, "_data_version")
        if data is not None and is_unmarked:
            # A constructor's buffers agree, unless they are known from another tensor.
            data_transpose._data_version = version_of(data)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(shape={tuple(self._shape)}, fp8_dtype={self._fp8_dtype.name}, "
            f"usages={self.get_usages()})"
        )

    # --- copies ---------------------------------------------------------------------------------

    @property
    def _transpose_invalid(self) -> bool:
        """Whether there is no transpose, or it does not belong to the present bytes."""
        transpose = self._transpose
        if transpose is None or self._is_transpose_discarded:
            return True
        # The write count of the bytes at the time of transposing lies on the buffer itself, so
        # that all tensors sharing both buffers agree. A transpose from elsewhere has none.
        made_at = getattr(transpose, "_data_version", None)
        if made_at is None or self._data is None:
            return False
        return bool(made_at != version_of(self._data))

    @_transpose_invalid.setter
    def _transpose_invalid(self, value: bool) -> None:
        self._is_transpose_discarded = bool(value)
        if not value:
            self._mark_transpose_current()

    def _mark_transpose_current(self) -> None:
        self._is_transpose_discarded = False
        if self._transpose is not None and self._data is not None:
            self._transpose._data_version = version_of(self._data)  # type: ignore[attr-defined]
            follow(self._data, self._transpose)

    def _after_bytes_written(self) -> None:
        self._mark_transpose_current()
        mark_written(self._data, self._transpose)

    def _check_current(self, method: str) -> None:
        """Refuse bytes that are older than those an alias without them wrote to the other copy.

        A stale transpose beside newer bytes is no such case: it is made again on demand.

        Raises
        ------
        RuntimeError
            If they are.
        """
        if self._data is not None:
            stale = stale_copy(self._data, None)
        else:
            stale = stale_copy(None, self._transpose)
        if stale is not None:
            raise stale_error(f"{type(self).__name__}.{method}", stale)

    def _check_copyable(self, src: QuantizedTensorStorage, method: str) -> None:
        """Also the formats must agree, and a part keeps the scale of its whole."""
        super()._check_copyable(src, method)
        assert isinstance(src, Float8TensorStorage)
        owner = f"{type(self).__name__}.{method}"
        if src._fp8_dtype != self._fp8_dtype:
            raise ValueError(
                f"{owner}: src has fp8_dtype {src._fp8_dtype.name}; {self._fp8_dtype.name} is "
                "required. Use quantize_ to convert."
            )
        if self._whole is not None and not torch.equal(src._scale_inv, self._scale_inv):
            raise ValueError(
                f"{owner}: src has scale_inv {src._scale_inv.item()}, but this is a part of a "
                f"tensor with scale_inv {self._scale_inv.item()}; equal ones are required. Use "
                "copy_ to convert."
            )

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        return len(shape) > 0 and shape[-1] == (self._shape or (1,))[-1]

    def _viewed_metadata(self, shape: Sequence[int], view: Callable[..., Any]) -> dict[str, Any]:
        metadata = self.get_metadata()
        if self._data is not None:
            metadata["data"] = view(torch.ops.aten.view.default, self._data, shape)
            share_state(self._data, metadata["data"])
        return {**metadata, "shape": torch.Size(shape)}

    def _after_gather(self, usages: dict[str, bool]) -> None:
        """Rowwise bytes have arrived: make the copies that a quantizer's usages ask for."""
        count_write(self._data)
        self.update_usage(
            columnwise_usage=usages["columnwise"], rowwise_usage=usages["rowwise"] or None
        )
        if not usages["rowwise"]:
            self.update_usage(rowwise_usage=False)

    def _create_transpose(self) -> None:
        """Make or refresh the transpose from the rowwise bytes."""
        if self._data is None:
            raise RuntimeError(
                f"{type(self).__name__}._create_transpose: there are no rowwise bytes to transpose."
            )
        self._check_current("_create_transpose")
        buffer = self._transpose
        columns = self._data.shape[-1] if self._data.dim() else 1
        rows = self._data.numel() // columns if columns else self._data.shape[:-1].numel()
        if buffer is None or buffer.shape != (columns, rows) or buffer.device != self._data.device:
            buffer = self._data.new_empty((columns, rows))
        tex.transpose_bytes(self._data.contiguous(), output=buffer)
        self._transpose = buffer
        self._mark_transpose_current()

    def _reset_caches(self) -> None:
        """Declare the transpose stale; its memory is kept for the next one."""
        self._transpose_invalid = True

    def remove_caches(self) -> None:
        """Drop the transpose and its memory."""
        self._transpose = None

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": self._data is not None, "columnwise": not self._transpose_invalid}

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Demand, drop or keep the two copies.

        Parameters
        ----------
        rowwise_usage, columnwise_usage : bool, optional
            None keeps the present state, False drops the copy, True demands it. A transpose is
            made from the rowwise bytes; those are never made from a transpose.

        Raises
        ------
        RuntimeError
            If a copy is demanded that cannot be made; nothing is changed then.
        """
        rowwise_usage, columnwise_usage = self._checked_usages(rowwise_usage, columnwise_usage)
        if rowwise_usage and self._data is None:
            raise RuntimeError(
                f"{type(self).__name__}.update_usage: rowwise_usage is True, but only the "
                "transpose is held; rowwise bytes are not rebuilt from it. Quantize again."
            )
        if columnwise_usage and self._transpose_invalid:
            self._create_transpose()
        elif columnwise_usage is False:
            self.remove_caches()
        if rowwise_usage is False:
            self._data = None

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        """The rowwise bytes: the scale is common to all ranks, a transpose is made on demand."""
        if self._data is None:
            raise ValueError(
                f"{type(self).__name__}.fsdp_pre_all_gather: the tensor holds only its transpose; "
                "rowwise bytes are required. Keep rowwise usage."
            )
        return ("_data",)

    def fsdp_assign_gathered(
        self, gathered: dict[str, torch.Tensor], usages: dict[str, bool], shape: torch.Size
    ) -> dict[str, Any]:
        """Metadata of the whole, of a shape, with a scale of its own."""
        # Without the rows that fill up the last ranks'.
        data = gathered["_data"].view(-1)[: shape.numel()].view(shape)
        scale_inv = self._scale_inv.clone()
        own = {"data": data, "data_transpose": None, "fp8_scale_inv": scale_inv}
        return {**self.get_metadata(), **own}

    def _native_operand(self) -> tuple[Any, Any]:
        """(rowwise, columnwise) as native steps read them; one copy serves all products."""
        self._check_current("_native_operand")

        def copy_of(data: torch.Tensor | None) -> tuple[Any, ...]:
            return data, self._scale_inv, None, _COPY_KIND, int(self._fp8_dtype), 0

        if self._data is None and self._transpose is not None and not self._is_transpose_discarded:
            return None, copy_of(self._transpose)
        return copy_of(self._data), None

    def get_data_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """(rowwise bytes, transposed bytes)."""
        return self._data, self._transpose

    def get_metadata(self) -> dict[str, Any]:
        return {
            "data": self._data,
            "data_transpose": self._transpose,
            "fp8_scale_inv": self._scale_inv,
            "fp8_dtype": self._fp8_dtype,
            "quantizer": self._quantizer,
            "dtype": self._dtype,
            "shape": self._shape,
        }

    def prepare_for_saving(
        self,
    ) -> tuple[list[torch.Tensor | None], Float8TensorStorage]:
        """Move the buffers out; a stale transpose is dropped, its mark would not survive."""
        if self._transpose_invalid:
            self._transpose = None
        return super().prepare_for_saving()

    # --- values ---------------------------------------------------------------------------------

    def _dequantize_impl(self, dtype: torch.dtype) -> torch.Tensor:
        self._check_current("dequantize")
        kernel_dtype = dtype if dtype in _DEQUANTIZED_DTYPES else torch.float32
        if self._data is not None:
            source = self._data
        elif self._transpose is not None:
            source = self._transpose
        else:
            raise RuntimeError(
                f"{type(self).__name__}.dequantize: the tensor holds no bytes; they were moved out "
                "or dropped."
            )
        # In the order of the bytes: the result has their strides, as the same view of plain values.
        order = sorted(range(source.dim()), key=source.stride, reverse=True)
        is_ordered = source.is_contiguous() or not source.permute(order).is_contiguous()
        values = tex.dequantize_fp8(
            (source if is_ordered else source.permute(order)).contiguous(),
            int(self._fp8_dtype),
            scale_inv=self._scale_inv,
            output_dtype=int(TE_DType[kernel_dtype]),
        )
        if not is_ordered:
            values = values.permute([order.index(axis) for axis in range(source.dim())])
        if self._data is None:
            values = values.t().reshape(self._shape)
        return values.to(dtype)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A plain tensor of the values, exact up to one rounding to its dtype.

        Parameters
        ----------
        dtype : torch.dtype, optional
            Default the nominal dtype.
        """
        return self._dequantize_impl(dtype or self._dtype)
