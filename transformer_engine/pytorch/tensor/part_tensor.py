# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of quantized tensors whose memory has no such parts.

A part (`narrow`, an index, a transpose, ...) has sizes, strides and an offset as if the tensor were
a plain one, and no values of its own: it reads those of the tensor, and writes go there.

- Values are quantized in the tensor: blocks of which the part has only some elements are rounded
  again with the others. Nothing outside the rows of those blocks changes, except where one scale is
  of the whole (NVFP4's amax).
- From a tensor of the same format, rows that are whole blocks in both are copied code for code. If
  the tensors have other amaxes (NVFP4), the whole is quantized again under the largest one; what
  was copied so before counts with the values it had then, so that a tensor put together from parts
  is rounded once, however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..constants import TE_DType
from .quantized_tensor import PART_VIEWS, QuantizedTensor, aten
from .quantizer import HIGH_PRECISION_DTYPES
from .storage.block_scaled_storage import matrix_shape
from .storage.quantized_storage import QuantizedTensorStorage
from .storage.write_tracking import count_write, remember_sources, sources_of

__all__ = ["TensorPart"]


class _Source(NamedTuple):
    """A quantized tensor that rows were copied from."""

    first: int
    last: int
    tensor: Any

    def values(self, usages: dict[str, bool]) -> torch.Tensor:
        """For some copies; in the nominal dtype, as ranks' rows are when they are gathered."""
        tensor = self.tensor
        if usages["columnwise"] and not usages["rowwise"] and tensor.get_usages()["columnwise"]:
            tensor = tensor._alias()
            tensor.update_usage(rowwise_usage=False)
        plain: torch.Tensor = tensor._dequantize_impl(tensor.dtype)
        return plain.view(self.last - self.first, -1)


class TensorPart(QuantizedTensor):
    """A part of a quantized tensor, or another order of it.

    Parameters
    ----------
    whole : QuantizedTensor
        What it is of; its buffers are referred to.
    shown : torch.Tensor
        The part of a contiguous tensor of that shape: only sizes, strides and offset matter.
    """

    _whole: Any

    def __new__(cls, whole: Any, shown: torch.Tensor) -> TensorPart:
        self = QuantizedTensor._make_wrapper(
            *(cls, shown.shape, whole.dtype, whole.device),
            strides=shown.stride(),
            storage_offset=int(shown.storage_offset()),
        )
        self._whole = whole
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        values = self._dequantize_impl(self.dtype)
        return f"{type(self).__name__}(of={type(self._whole).__name__}, data={values!r})"

    # --- where it lies --------------------------------------------------------------------------

    def _geometry(self) -> torch.Tensor:
        """A tensor without memory that lies where this one does."""
        memory = torch.empty(self._whole.shape, device="meta")
        return memory.as_strided(self.shape, self.stride(), self.storage_offset())

    def _touched_rows(self) -> tuple[int, int]:
        """First and last + 1 of the rows of the matrix that hold elements."""
        _, columns = matrix_shape(self._whole.shape)
        begin = int(self.storage_offset())
        end = begin + sum((n - 1) * step for n, step in zip(self.shape, self.stride(), strict=True))
        return begin // columns, end // columns + 1

    def _whole_rows(self) -> tuple[int, int] | None:
        """Those rows, if the part is all of them in their order."""
        _, columns = matrix_shape(self._whole.shape)
        is_plain = self.dim() > 0 and self.numel() > 0 and self.is_contiguous()
        if not is_plain or self.shape[-1] != columns or self.storage_offset() % columns:
            return None
        return self._touched_rows()

    def _window(self) -> tuple[int, int]:
        """The touched rows and the others of their blocks."""
        count = matrix_shape(self._whole.shape)[0]
        block = self._whole._row_block()
        if block is None:
            return 0, count
        first, last = self._touched_rows()
        return first // block * block, min(-(-last // block) * block, count)

    def _is_whole_blocks(self) -> bool:
        rows = self._whole_rows()
        return rows is not None and self._whole._row_block() is not None and rows == self._window()

    def _rows_of_whole(self, first: int, last: int, shape: Sequence[int]) -> Any:
        return type(self._whole)(**self._whole._rows(first, last, shape))

    def extracted(self) -> Any:
        """A tensor of the format with the same codes; None if the part is no rows of whole blocks.

        It shares nothing with the part.
        """
        if not self._is_whole_blocks():
            return None
        return self._rows_of_whole(*self._window(), self.shape)

    def _seen_in(self, values: torch.Tensor, first: int) -> torch.Tensor:
        """The part's elements among the values of rows from `first` on."""
        _, columns = matrix_shape(self._whole.shape)
        offset = int(self.storage_offset()) - first * columns
        return values.as_strided(self.shape, self.stride(), offset)

    # --- values ---------------------------------------------------------------------------------

    def _dequantize_impl(self, dtype: torch.dtype) -> torch.Tensor:
        if self.numel() == 0:
            return torch.empty(self.shape, dtype=dtype, device=self.device)
        first, last = self._window()
        rows = self._whole
        if last - first < matrix_shape(rows.shape)[0]:
            rows = self._rows_of_whole(first, last, (last - first, rows.shape[-1]))
        values: torch.Tensor = rows._dequantize_impl(dtype)
        return self._seen_in(values.contiguous(), first)

    def _overwrite(self, tensor: torch.Tensor, noop_flag: torch.Tensor | None = None) -> None:
        if tensor.shape != self.shape:
            raise ValueError(
                f"{type(self).__name__}.quantize_: tensor has shape {tuple(tensor.shape)}; "
                f"{tuple(self.shape)} is required, that of the part. Use copy_ to broadcast."
            )
        if noop_flag is None or noop_flag.item() == 0:
            plain = tensor.dequantize() if isinstance(tensor, QuantizedTensorStorage) else tensor
            self._write(plain.detach())

    def _write(self, values: torch.Tensor | None, sources: Sequence[_Source] = ()) -> None:
        """Put values, or those of sources, in place of what the tensor has there."""
        if self.numel() == 0:
            return
        whole = self._whole
        whole._make_current("copy_")
        count, columns = matrix_shape(whole.shape)
        first, last = (0, count) if whole._common_amaxes() else self._window()
        is_window = last - first < count
        rows = whole
        if is_window:
            rows = self._rows_of_whole(first, last, (last - first, columns))

        def replaced(copy: Any) -> torch.Tensor:
            # Not in the nominal dtype, which need not hold what stays.
            old: torch.Tensor = copy._dequantize_impl(torch.float32)
            full = old.clone(memory_format=torch.contiguous_format)
            for source in sources:
                new = source.values(copy.get_usages())
                full.view(-1, columns)[source.first : source.last] = new
            if values is not None:
                self._seen_in(full, first).copy_(values)
            return full

        copies = rows._separate_copies()
        # All before the first is written, which makes the other copy an old one.
        made = [replaced(copy) for copy in copies]
        for copy, full in zip(copies, made, strict=True):
            copy.quantize_(full)
        if is_window:
            whole._put_rows(first, last, rows)
        self._tell_written()

    def _tell_written(self, sources: Sequence[_Source] = ()) -> None:
        for buffer in self._buffers().values():
            count_write(buffer)
        self._whole._after_bytes_written()
        rowwise, columnwise = self._whole._tracked()
        remember_sources(rowwise, columnwise, sources)

    def _copy_bytes_from(self, src: QuantizedTensor) -> bool:
        source = src.extracted() if isinstance(src, TensorPart) else src
        rows = self.extracted()
        if source is None or rows is None or not rows._copy_bytes_from(source):
            return False
        whole, (first, last) = self._whole, self._window()
        whole._make_current("copy_")
        sources: list[_Source] = []
        amaxes = whole._common_amaxes()
        if amaxes:
            new = _Source(first, last, source if source is not src else source._copied(torch.clone))
            sources = _with_source(sources_of(*whole._tracked()), new)
        if all(map(torch.equal, amaxes, rows._common_amaxes())):
            whole._put_rows(first, last, rows)
        else:
            self._write(None, sources)
        is_complete = _are_all(sources, matrix_shape(whole.shape)[0])
        self._tell_written(() if is_complete else sources)
        return True

    def _native_operand(self) -> tuple[Any, None]:
        """(rowwise, columnwise) as native steps read them: high precision, for both directions."""
        dtype = self.dtype if self.dtype in HIGH_PRECISION_DTYPES else torch.float32
        plain = self._dequantize_impl(dtype)
        return (plain, None, None, 0, int(TE_DType[plain.dtype]), 0), None

    # --- what other tensors have of their own -----------------------------------------------------

    def _buffers(self) -> dict[str, torch.Tensor | None]:
        buffers: dict[str, torch.Tensor | None] = self._whole._buffers()
        return buffers

    def get_usages(self) -> dict[str, bool]:
        """Which copies the tensor has: ``{"rowwise": bool, "columnwise": bool}``."""
        usages: dict[str, bool] = self._whole.get_usages()
        return usages

    def _require_quantizer(self, method: str) -> Any:
        return self._whole._require_quantizer(method)

    def _alias(self, *, dtype: torch.dtype | None = None) -> TensorPart:
        whole = self._whole if dtype is None else self._whole._alias(dtype=dtype)
        return type(self)(whole, self)

    def _copied(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        *,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """A tensor of the format where there are whole blocks, else a plain one."""
        rows = self.extracted()
        if rows is None:
            return function(self._dequantize_impl(dtype or self.dtype))
        return rows._copied(function, dtype=dtype)

    def _set_data(self, value: torch.Tensor) -> None:
        raise RuntimeError(
            f"{type(self).__name__}.data: a part was assigned a {type(value).__name__}, and it has "
            "no data of its own; one that has is required. Use copy_."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone()
        return memo[id(self)]

    def _reduce(self) -> Any:
        return self.detach().clone().__reduce_ex__(2)

    # --- dispatch -------------------------------------------------------------------------------

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _VIEWS and isinstance(args[0], TensorPart):
            return part_view(args[0], func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)


_VIEWS = {
    *(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default),
    *(aten.as_strided.default, *PART_VIEWS),
}


def _with_source(former: Sequence[_Source], new: _Source) -> list[_Source]:
    """A list of what rows were copied from, without what another copy has replaced."""
    kept = [s for s in former if s.first < new.first or s.last > new.last]
    return [*kept, new]


def _are_all(sources: Sequence[_Source], count: int) -> bool:
    """Whether every row was copied."""
    reached = 0
    for source in sorted(sources, key=lambda s: s.first):
        if source.first > reached:
            return False
        reached = max(reached, source.last)
    return reached == count


def part_view(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """slice, transpose, unbind and others, of a tensor or a part: the tensor if that is shown."""
    is_part = isinstance(tensor, TensorPart)
    whole = tensor._whole if is_part else tensor
    place = tensor._geometry() if is_part else torch.empty(tensor.shape, device="meta")
    shown = func(place, *args[1:], **kwargs)
    # An alias: it stays what it is when the tensor's data is set, and has no gradient.
    kept = whole if is_part else whole._alias()

    def wrap(part: torch.Tensor) -> Any:
        is_all = (part.shape, part.stride()) == (whole.shape, _contiguous_strides(whole.shape))
        if is_all and part.storage_offset() == 0:
            return whole._alias()
        return TensorPart(kept, part)

    return wrap(shown) if isinstance(shown, torch.Tensor) else [wrap(part) for part in shown]


def _contiguous_strides(shape: torch.Size) -> tuple[int, ...]:
    return tuple(max(1, math.prod(max(1, n) for n in shape[i + 1 :])) for i in range(len(shape)))
