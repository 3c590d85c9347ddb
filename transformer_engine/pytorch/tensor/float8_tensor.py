# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tensor of per-tensor FP8, and what torch operations do on its bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..constants import DType
from .float8_current_scaling import Float8CurrentScalingQuantizer
from .float8_quantizer import Float8Quantizer
from .fsdp_tensor import FsdpTensor
from .part_assembly import ArrivingParts, shares_bytes
from .quantized_tensor import PART_VIEWS, QuantizedTensor, aten, view_bytes
from .quantizer import NOMINAL_DTYPES, Quantizer
from .storage.float8_tensor_storage import Float8TensorStorage
from .storage.write_tracking import (
    arriving_in,
    begin_part,
    count_write,
    keep_arriving,
    mark_written,
    share_state,
)

__all__ = [
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
]


class Float8Tensor(FsdpTensor, Float8TensorStorage):  # type: ignore[misc]
    """A tensor held as FP8 bytes and one scale.

    Parameters
    ----------
    shape : sequence of int
        Logical shape.
    dtype : torch.dtype
        Nominal dtype.
    data : torch.Tensor or None
        uint8 of that shape.
    fp8_scale_inv : torch.Tensor
        float32 [1].
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    requires_grad : bool, default False
        As of any tensor.
    data_transpose : torch.Tensor, optional
        uint8 [K, M].
    quantizer : Quantizer, optional
        Copied; what in-place updates quantize with.
    device : torch.device, optional
        Default that of the buffers.
    """

    def __new__(  # noqa: PLR0913  # frozen public signature
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        data: torch.Tensor | None,
        fp8_scale_inv: torch.Tensor,
        fp8_dtype: DType,
        requires_grad: bool = False,
        data_transpose: torch.Tensor | None = None,
        quantizer: Quantizer | None = None,
        device: torch.device | None = None,
    ) -> Float8Tensor:
        cls._check_sizes(shape, data, data_transpose)
        source = next((b for b in (data, data_transpose) if b is not None), fp8_scale_inv)
        strides = data.stride() if data is not None and data.shape == torch.Size(shape) else None
        offset: Any = None if data is None or strides is None else data.storage_offset()
        self = QuantizedTensor._make_wrapper(
            *(cls, shape, dtype, device or source.device, requires_grad, strides),
            storage_offset=offset,
        )
        self._init_storage(
            data=data.view(shape) if data is not None and strides is None else data,
            fp8_scale_inv=fp8_scale_inv,
            fp8_dtype=fp8_dtype,
            data_transpose=data_transpose,
            quantizer=None if quantizer is None else quantizer.copy_for_tensor(),
        )
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        values = "no data"
        if self._data is not None or self._transpose is not None:
            values = repr(self._dequantize_impl(self.dtype))
        scale_inv = None if self._scale_inv is None else self._scale_inv.tolist()
        grad = f", requires_grad={self.requires_grad}" if self.requires_grad else ""
        return (
            f"{type(self).__name__}(fp8_dtype={self._fp8_dtype.name}, scale_inv={scale_inv}, "
            f"data={values}{grad})"
        )

    def _copy_marks(self, other: Any) -> None:
        other._whole = self._whole
        other._is_transpose_discarded = self._is_transpose_discarded

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        self._init_storage(
            data=metadata["data"],
            fp8_scale_inv=metadata["fp8_scale_inv"],
            fp8_dtype=metadata["fp8_dtype"],
            data_transpose=metadata["data_transpose"],
            quantizer=quantizer,
        )

    def _mapped_metadata(self, function: Any) -> dict[str, Any]:
        # A stale transpose is not copied: the mark that says so stays on the old buffer.
        self._check_current("clone")
        if self._transpose_invalid:
            self._transpose = None
        return super()._mapped_metadata(function)

    def _copy_bytes_from(self, src: Any) -> bool:
        """Take over bytes and scale of another FP8 tensor; False if that is not possible.

        A source without a quantizer (unpickled) counts as one of the same kind: its bytes are
        exact, quantizing them again would not be.
        """
        is_same_kind = isinstance(src, Float8Tensor) and (
            src._quantizer is None or type(src._quantizer) is type(self._quantizer)
        )
        if not is_same_kind or src._data is None or self._data is None:
            return False
        src._check_current("copy_")
        if src._fp8_dtype != self._fp8_dtype:  # which other tensors on these bytes would not learn
            return False
        if self._whole is not None and not torch.equal(src._scale_inv, self._scale_inv):
            return self._replace_all_but_zeros(src, self._whole) or (
                src._quantizer is None and self._assemble(src, self._whole)
            )
        self._data.copy_(src._data)
        self._scale_inv.copy_(src._scale_inv)
        count_write(self._data)
        if self._transpose is not None and not src._transpose_invalid:
            self._transpose.copy_(src._transpose)
            self._after_bytes_written()
            return True
        mark_written(self._data, None)
        if self._quantizer is not None and self._quantizer.columnwise_usage:
            self._create_transpose()
        else:
            self._reset_caches()
        return True

    def _replace_all_but_zeros(self, src: Any, whole: Float8TensorStorage) -> bool:
        """Take over bytes and scale if the whole holds nothing but zeros besides this part."""
        part, everything = self._data, whole._data
        if part is None or everything is None or shares_bytes(part):
            return False
        parts = ArrivingParts(everything, src._scale_inv)
        parts.put(everything, part, src._data)
        return self._take_complete(parts, whole, everything)

    def _take_complete(
        self, parts: ArrivingParts, whole: Float8TensorStorage, everything: torch.Tensor
    ) -> bool:
        """Let parts and their scale take the place of the whole, once they are complete."""
        data = parts.complete(everything)
        if data is None:
            return False
        everything.copy_(data)
        whole._scale_inv.copy_(parts.scale_inv)
        count_write(everything)
        self._reset_caches()
        mark_written(everything, None)
        return True

    def _assemble(self, src: Any, whole: Float8TensorStorage) -> bool:
        """Take a part of a file into the whole; exact once all parts have come."""
        part, everything = self._data, whole._data
        if part is None or everything is None or self._quantizer is None:
            return False
        parts = arriving_in(everything)
        if parts is None or not torch.equal(parts.scale_inv, src._scale_inv):
            parts = ArrivingParts(everything, src._scale_inv)
        self._overwrite(src._dequantize_impl(torch.float32))  # which also says what is wrong
        parts.put(everything, part, src._data)
        if not self._take_complete(parts, whole, everything):
            keep_arriving(everything, parts)
        return True

    def _reduce(self) -> Any:
        self._check_current("__reduce_ex__")
        # Bytes as they are; a transpose can be made again from the rowwise bytes.
        transpose = self._transpose if self._data is None else None
        arguments = (
            *(type(self), tuple(self.shape), self.dtype, self._data, self._scale_inv),
            *(int(self._fp8_dtype), transpose),
        )
        return (_make_float8_tensor_in_reduce_ex, arguments)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _FLOAT8_HANDLERS.get(func)
        if handler is not None and isinstance(args[0], Float8Tensor):
            result = handler(func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return super().__torch_dispatch__(func, types, args, kwargs)


Float8TensorStorage.tensor_class = Float8Tensor


def _make_float8_tensor_in_reduce_ex(
    cls: type[Float8Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    data: torch.Tensor | None,
    fp8_scale_inv: torch.Tensor,
    fp8_dtype: int,
    data_transpose: torch.Tensor | None,
) -> Float8Tensor:
    """Rebuild a pickled tensor. The name and place are part of the file format."""
    return cls(
        shape=shape,
        dtype=dtype,
        data=data,
        fp8_scale_inv=fp8_scale_inv,
        fp8_dtype=DType(fp8_dtype),
        data_transpose=data_transpose,
    )


# --- torch operations that act on the bytes: (func, args, kwargs) -> result ---


def _around(
    tensor: Float8Tensor, data: torch.Tensor | None, transpose: torch.Tensor | None, shape: Any
) -> Float8Tensor:
    """A tensor of the same class and scale around other buffers."""
    result = type(tensor).make_like(tensor, shape=shape, data=data, data_transpose=transpose)
    tensor._copy_marks(result)
    return result


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) else (1, 1)


def _whole_view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """view, reshape: the transpose stays only if the bytes keep their matrix shape."""
    tensor: Float8Tensor = args[0]
    if tensor._data is None:
        raise NotImplementedError(
            f"{type(tensor).__name__}.view: the tensor holds only its transpose, whose bytes are "
            "in another order. Dequantize first."
        )
    data = view_bytes(func, tensor._data, *args[1:], **kwargs)
    share_state(tensor._data, data)
    keeps_matrix = _matrix_shape(data.shape) == _matrix_shape(tensor.shape)
    return _around(tensor, data, tensor._transpose if keeps_matrix else None, data.shape)


def _part_view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """slice, transpose, unbind and others: a part of the bytes or another order of them."""
    tensor: Float8Tensor = args[0]
    whole = tensor._whole or _as_whole(tensor)
    if whole is None:
        return NotImplemented
    data: Any = tensor._data if tensor._data is not None else whole._data
    result = view_bytes(func, data, *args[1:], **kwargs)

    def wrap(part: torch.Tensor) -> Float8Tensor:
        is_same = part.shape == tensor.shape and part.stride() == data.stride()
        if is_same and tensor._data is not None:
            return tensor._alias()
        begin_part(data, part)
        view = _around(tensor, part, None, part.shape)
        view._whole = whole
        return view

    return wrap(result) if isinstance(result, torch.Tensor) else [wrap(part) for part in result]


def _as_whole(tensor: Float8Tensor) -> Float8TensorStorage | None:
    """What views of a tensor refer to: all its bytes in the logical shape; None without bytes.

    No tensor of its own, so that a view outlives `data` being set and keeps no transpose alive.
    """
    data = tensor._data
    if data is None:
        if tensor._transpose is None:
            return None
        # Splitting the rows into the leading axes is a view whatever their stride.
        rows = view_bytes(aten.t.default, tensor._transpose)
        data = view_bytes(aten.view.default, rows, tensor.shape)
    return Float8TensorStorage(
        data=data,
        fp8_scale_inv=tensor._scale_inv,
        fp8_dtype=tensor._fp8_dtype,
        dtype=tensor.dtype,
    )


def _strided_view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """as_strided: its offset counts from where the tensor's memory begins, which bytes may not."""
    tensor: Float8Tensor = args[0]
    offset = kwargs.get("storage_offset", args[3] if len(args) > 3 else None)
    if offset is not None and tensor._data is not None:
        offset += tensor._data.storage_offset() - tensor.storage_offset()
    return _part_view(func, (*args[:3], offset), {})


def _view_dtype(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """view(dtype): the memory it would show does not exist, and a copy would swallow writes."""
    if args[1] != args[0].dtype:
        raise TypeError(
            f"{type(args[0]).__name__}.view: dtype is {args[1]}, but there are no bytes of "
            f"{args[0].dtype} to read so; its own dtype is required. Dequantize first."
        )
    return args[0]._alias()


def _new_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: Float8Tensor = args[0]
    if tensor._data is None or kwargs.get("dtype") not in (None, *NOMINAL_DTYPES):
        return NotImplemented
    device = kwargs.get("device") or tensor.device
    data = torch.zeros(args[1], dtype=torch.uint8, device=device)
    return type(tensor).make_like(
        tensor,
        shape=data.shape,
        dtype=kwargs.get("dtype"),
        data=data,
        data_transpose=None,
        fp8_scale_inv=tensor._scale_inv.to(device=device, copy=True),
    )


_FLOAT8_HANDLERS = {
    aten.view.default: _whole_view,
    aten._unsafe_view.default: _whole_view,
    aten._reshape_alias.default: _whole_view,
    aten.view.dtype: _view_dtype,
    aten.as_strided.default: _strided_view,
    aten.new_zeros.default: _new_zeros,
    **dict.fromkeys(PART_VIEWS, _part_view),
}
