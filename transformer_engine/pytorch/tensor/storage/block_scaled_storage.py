# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the storages of all formats with one scale per block share.

With M the product of the leading axes and K the last axis, a tensor has up to two copies: one whose
blocks lie along K (rowwise) and one whose blocks lie along M (columnwise). Each is a quantization
of its own and has data, scales and perhaps an amax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from ...constants import TE_DType
from ...cpp_extensions import cast as tex
from .quantized_storage import QuantizedTensorStorage
from .write_tracking import (
    Stale,
    count_write,
    follow,
    mark_written,
    share_state,
    stale_copy,
    stale_error,
    track_copies,
)

# A copy as native code gives and takes it: (data, scale_inv, amax, kind, dtype, flags).
Copy = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, int, int, int]

# Numbers of csrc/operand.h: CopyKind and CopyFormat::Flag.
KIND_FP8_BLOCKS, KIND_FP8_TILES, KIND_MXFP8, KIND_NVFP4 = 2, 3, 4, 5
FLAG_POWERS_OF_TWO, FLAG_SQUARE_TILES, FLAG_ROW_SCALED = 1, 2, 4
FLAG_HADAMARD, FLAG_SCALES_TO_256 = 8, 16

# Field -> constructor keyword of the buffers all these formats have.
BLOCK_BUFFERS = {
    "_rowwise_data": "rowwise_data",
    "_rowwise_scale_inv": "rowwise_scale_inv",
    "_columnwise_data": "columnwise_data",
    "_columnwise_scale_inv": "columnwise_scale_inv",
}
_REQUIRED = object()


class Setting(NamedTuple):
    """A fact without which the buffers mean nothing.

    `default` stands for what neither the constructor's caller nor the quantizer says; without one
    the keyword is required.
    """

    keyword: str
    convert: Callable[[Any], Any]
    default: Any = _REQUIRED


def matrix_shape(shape: Any) -> tuple[int, int]:
    """(M, K) of a logical shape."""
    sizes = tuple(shape)
    return (math.prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)


def copy_layout(copy_format: tuple[int, int, int], columnwise: bool, shape: Any) -> dict[str, Any]:
    """How a copy of a tensor of some logical shape is stored.

    Returns
    -------
    dict
        Shapes: "data" as a matrix, "scales", "amax" (number of elements). Where the M rows are:
        "is_transposed", whether along axis 1 of the data; "row_scales" of them, without padding,
        along axis "row_scales_dim" of the scales.
    """
    kind, dtype, flags = copy_format
    rows, cols = matrix_shape(shape)
    return tex.copy_layout(kind, dtype, flags, columnwise, rows, cols)


class BlockScaledTensorStorage(QuantizedTensorStorage):
    """Data and scales of one tensor.

    Parameters
    ----------
    rowwise_data, rowwise_scale_inv, columnwise_data, columnwise_scale_inv : torch.Tensor, optional
        Of a copy that is not held, both are None.
    quantizer : Quantizer, optional
        For in-place updates; kept as it is.
    shape : sequence of int, optional
        Logical shape; default that of the data.
    dtype : torch.dtype, default torch.float32
        Nominal dtype.
    **settings
        What the format needs to know besides.
    """

    # Field -> setting.
    _settings: ClassVar[dict[str, Setting]] = {}
    # Fields of the rowwise and of the columnwise copy: data, scales and perhaps an amax.
    _copy_fields: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (
        ("_rowwise_data", "_rowwise_scale_inv"),
        ("_columnwise_data", "_columnwise_scale_inv"),
    )
    # Buffers that have the logical shape; the others are matrices.
    _logical_buffers: ClassVar[tuple[str, ...]] = ()
    # The tensor class with this storage's data; set by the module that defines it.
    tensor_class: ClassVar[Any]

    # Buffers to be filled when what was gathered has arrived; see `block_gather`.
    _pending: Sequence[Any] = ()

    _rowwise_data: torch.Tensor | None
    _rowwise_scale_inv: torch.Tensor | None
    _columnwise_data: torch.Tensor | None
    _columnwise_scale_inv: torch.Tensor | None

    def __init__(
        self,
        *,
        quantizer: Any = None,
        shape: Any = None,
        dtype: torch.dtype = torch.float32,
        **fields: Any,
    ) -> None:
        self._init_fields(fields, quantizer)
        self._shape = self._shape_of_buffers() if shape is None else torch.Size(shape)
        self._dtype = dtype
        self._check_data()

    def _check_data(self) -> None:
        """Refuse data that is not of the logical shape."""
        for is_columnwise, fields in ((False, self._copy_fields[0]), (True, self._copy_fields[1])):
            data = getattr(self, fields[0])
            if data is not None:
                keyword, needed = self._buffer_keywords[fields[0]], self._data_shape(is_columnwise)
                self._check_buffer_shape(keyword, data, needed, self._shape)

    def _data_shape(self, columnwise: bool) -> Sequence[int]:
        """Shape of the data of one copy."""
        raise NotImplementedError

    def _init_fields(self, fields: dict[str, Any], quantizer: Any) -> None:
        """Set buffers and settings from constructor keywords."""
        self._quantizer = quantizer
        given = dict(fields)
        for name, keyword in self._buffer_keywords.items():
            setattr(self, name, given.pop(keyword, None))
        for name, setting in self._settings.items():
            value = given.pop(setting.keyword, None)
            if value is None:
                value = getattr(quantizer, setting.keyword, setting.default)
            if value is _REQUIRED:
                raise TypeError(
                    f"{type(self).__name__}: {setting.keyword} is missing; it is required."
                )
            setattr(self, name, setting.convert(value))
        track_copies(self._rowwise_data, self._columnwise_data)
        if given:
            known = [*self._buffer_keywords.values()]
            known += [setting.keyword for setting in self._settings.values()]
            raise TypeError(
                f"{type(self).__name__}: unknown keyword {next(iter(given))!r}; known are "
                f"{', '.join(known)}, quantizer, shape and dtype."
            )

    def _shape_of_buffers(self) -> torch.Size:
        """The logical shape as far as the data tells it."""
        raise NotImplementedError

    def _no_shape(self) -> ValueError:
        return ValueError(
            f"{type(self).__name__}: rowwise_data, columnwise_data and shape are all None; one of "
            "them is required to know the shape."
        )

    def __repr__(self) -> str:
        settings = "".join(
            f", {setting.keyword}={getattr(self, name)!s}"
            for name, setting in self._settings.items()
        )
        shape, usages = tuple(self._shape), self.get_usages()
        return f"{type(self).__name__}(shape={shape}{settings}, usages={usages})"

    # --- copies ---------------------------------------------------------------------------------

    def _copy_format(self, columnwise: bool) -> tuple[int, int, int]:
        """(kind, dtype, flags) of a copy, the numbers of csrc/operand.h."""
        raise NotImplementedError

    @classmethod
    def _settings_of_format(cls, copy_format: tuple[int, int, int]) -> dict[str, Any]:
        """Constructor keywords of the settings that `_copy_format` stands for."""
        raise NotImplementedError

    @classmethod
    def keywords_of_copies(cls, rowwise: Copy | None, columnwise: Copy | None) -> dict[str, Any]:
        """Constructor keywords for copies as native code gives them."""
        keywords = cls._settings_of_copies(rowwise, columnwise)
        for fields, copy in zip(cls._copy_fields, (rowwise, columnwise), strict=True):
            if copy is not None:
                keywords.update(
                    {
                        cls._buffer_keywords[name]: buffer
                        for name, buffer in zip(fields, copy[:3], strict=False)
                    }
                )
        return keywords

    @classmethod
    def _settings_of_copies(cls, rowwise: Copy | None, columnwise: Copy | None) -> dict[str, Any]:
        held = rowwise or columnwise
        assert held is not None, "a copy is there"
        return cls._settings_of_format(held[3:])

    def _copy(self, columnwise: bool) -> Copy | None:
        """A copy as native code takes it; None if it is not held."""
        fields = self._copy_fields[columnwise]
        data = getattr(self, fields[0])
        if data is None:
            return None
        amax = getattr(self, fields[2]) if len(fields) > 2 else None
        return (data, getattr(self, fields[1]), amax, *self._copy_format(columnwise))

    def _set_copy(self, columnwise: bool, copy: Copy | None) -> None:
        """Hold the buffers of a copy, or none."""
        buffers = (None, None, None) if copy is None else copy[:3]
        for name, buffer in zip(self._copy_fields[columnwise], buffers, strict=False):
            setattr(self, name, buffer)

    def _take_copies(self, rowwise: Copy | None, columnwise: Copy | None, quantizer: Any) -> None:
        """Hold copies that a quantizer made, and know what their formats and it say."""
        fields = self._settings_of_copies(rowwise, columnwise)
        for name, setting in self._settings.items():
            value = fields.get(setting.keyword, getattr(quantizer, setting.keyword, None))
            if value is not None:
                setattr(self, name, setting.convert(value))
        for is_columnwise, copy in ((False, rowwise), (True, columnwise)):
            if copy is not None:
                self._set_copy(is_columnwise, copy)

    def _check_scales_readable(self, method: str) -> None:
        if getattr(self, "_with_gemm_swizzled_scales", False):
            raise NotImplementedError(
                f"{type(self).__name__}.{method}: with_gemm_swizzled_scales is True; scales in the "
                "order of a GPU's GEMM are not readable here. Quantize with optimize_for_gemm off."
            )

    def _native_operand(self) -> tuple[Copy | None, Copy | None]:
        """(rowwise, columnwise) as native steps read them."""
        self._check_scales_readable("_native_operand")
        self._settle("_native_operand")
        return self._copy(columnwise=False), self._copy(columnwise=True)

    def get_usages(self) -> dict[str, bool]:
        return {
            "rowwise": self._rowwise_data is not None,
            "columnwise": self._columnwise_data is not None,
        }

    def _wanted_usages(
        self, rowwise_usage: bool | None, columnwise_usage: bool | None
    ) -> tuple[bool, bool]:
        """What `update_usage` asks for, None standing for the present state."""
        held = self.get_usages()
        asked = self._checked_usages(rowwise_usage, columnwise_usage)
        return (
            held["rowwise"] if asked[0] is None else asked[0],
            held["columnwise"] if asked[1] is None else asked[1],
        )

    def _missing_usage(self, name: str, remedy: str = "Quantize again.") -> str:
        return (
            f"{type(self).__name__}.update_usage: {name}_usage is True, but there is no {name} "
            f"copy, and it is not made from the other one. {remedy}"
        )

    def _drop_unwanted(self, rowwise: bool, columnwise: bool) -> None:
        if not rowwise:
            self._set_copy(False, None)
        if not columnwise:
            self._set_copy(True, None)

    # --- copies of different age ----------------------------------------------------------------

    def _is_derivable(self) -> bool:
        """Whether one copy follows from the other exactly, without quantizing again."""
        return False

    def _derived(self, columnwise: bool) -> list[torch.Tensor | None]:
        """Data, scales and amax (if any) of one copy, made from the other."""
        raise NotImplementedError(f"{type(self).__name__}._derived is not implemented.")

    def _derive_copy(self, columnwise: bool) -> None:
        """Make one copy from the other, into the buffers that are held."""
        fields, made = self._copy_fields[columnwise], self._derived(columnwise)
        for name, buffer in zip(fields, made, strict=False):
            held = getattr(self, name)
            if held is None or buffer is None or held.shape != buffer.shape:
                setattr(self, name, buffer)
            else:
                held.copy_(buffer)
        source, target = (
            getattr(self, self._copy_fields[c][0]) for c in (not columnwise, columnwise)
        )
        follow(source, target)

    def _create_columnwise(self) -> None:
        """Make the columnwise copy from the rowwise one."""
        self._derive_copy(columnwise=True)

    def _after_bytes_written(self) -> None:
        self._pending = ()
        mark_written(self._rowwise_data, self._columnwise_data)

    def _stale(self) -> Stale | None:
        """Which copy is older than the other one, once what was gathered is in place."""
        if self._pending:
            for placement in self._pending:
                placement.place()
            self._after_bytes_written()
        return stale_copy(self._rowwise_data, self._columnwise_data)

    def _after_gather(self, usages: dict[str, bool]) -> None:
        """The gathered copies have arrived: make the others that a quantizer's usages ask for."""
        self._stale()
        for buffer in self._buffers().values():
            count_write(buffer)
        if usages["columnwise"] and self._columnwise_data is None:
            self._create_columnwise()
        elif usages["columnwise"]:
            self._settle("_after_gather")
        self._drop_unwanted(usages["rowwise"], usages["columnwise"])

    def _settle(self, method: str) -> None:
        """Make a copy that is older than the other one again.

        Raises
        ------
        RuntimeError
            If it does not follow from the other one.
        """
        stale = self._stale()
        if stale is None:
            return
        held = self.get_usages()
        if stale == "one" or not (all(held.values()) and self._is_derivable()):
            raise stale_error(f"{type(self).__name__}.{method}", stale)
        self._derive_copy(columnwise=stale == "columnwise")

    def _current_copies(self, method: str) -> tuple[Copy | None, Copy | None]:
        """(rowwise, columnwise), of which one that is older than the other counts as not held."""
        stale = self._stale()
        if stale == "one" or (stale is not None and not all(self.get_usages().values())):
            self._settle(method)
        return (
            None if stale == "rowwise" else self._copy(columnwise=False),
            None if stale == "columnwise" else self._copy(columnwise=True),
        )

    def _settle_wanted(self, rowwise: bool, columnwise: bool) -> None:
        """Before copies are dropped: what stays must be current."""
        stale = self._stale()
        if (
            stale == "one"
            or (stale == "rowwise" and rowwise)
            or (stale == "columnwise" and columnwise)
        ):
            self._settle("update_usage")

    def _mapped_metadata(self, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        self._settle("clone")
        return super()._mapped_metadata(function)

    def get_data_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """(rowwise data, columnwise data)."""
        return self._rowwise_data, self._columnwise_data

    def get_metadata(self) -> dict[str, Any]:
        metadata = {keyword: getattr(self, name) for name, keyword in self._buffer_keywords.items()}
        metadata.update(
            {setting.keyword: getattr(self, name) for name, setting in self._settings.items()}
        )
        metadata.update(quantizer=self._quantizer, shape=self._shape, dtype=self._dtype)
        return metadata

    def _viewed_metadata(self, shape: Sequence[int], view: Callable[..., Any]) -> dict[str, Any]:
        metadata = self.get_metadata()
        for name in self._logical_buffers:
            data = getattr(self, name)
            if data is not None:
                keyword = self._buffer_keywords[name]
                metadata[keyword] = view(torch.ops.aten.view.default, data, shape)
                share_state(data, metadata[keyword])
        return {**metadata, "shape": torch.Size(shape)}

    def _is_same_format(self, other: BlockScaledTensorStorage) -> bool:
        return all(getattr(self, name) == getattr(other, name) for name in self._settings)

    def _check_copyable(self, src: QuantizedTensorStorage, method: str) -> None:
        """The settings of both must agree, too."""
        super()._check_copyable(src, method)
        assert isinstance(src, BlockScaledTensorStorage)
        src._settle(method)
        for name, setting in self._settings.items():
            own, other = getattr(self, name), getattr(src, name)
            if own != other:
                raise ValueError(
                    f"{type(self).__name__}.{method}: src has {setting.keyword} {other!s}; "
                    f"{own!s} is required. Use quantize_ to convert."
                )

    # --- rows as parts --------------------------------------------------------------------------

    def _row_block(self) -> int:
        held = [c for c in (False, True) if self._copy(c) is not None]
        layouts = [copy_layout(self._copy_format(c), c, self._shape) for c in held]
        return max((layout["shard_rows"] for layout in layouts), default=1)

    def _row_views(self, columnwise: bool, first: int, last: int) -> list[torch.Tensor | None]:
        """The rows in a copy's data (as a matrix), scales and amaxes; None for one amax of all."""
        held = self._copy(columnwise)
        assert held is not None, "the copy is held"
        data, scales, amax = held[:3]
        assert data is not None and scales is not None, "it has data and scales"
        # The first `first` and the first `last` rows are copies of their own, up to padding.
        columns = matrix_shape(self._shape)[1]
        before, up_to = (
            copy_layout(held[3:], columnwise, (rows, columns)) for rows in (first, last)
        )
        axis, scale_axis = int(before["is_transposed"]), before["row_scales_dim"]
        begin, end = (layout["data"][axis] for layout in (before, up_to))
        views: list[torch.Tensor | None] = [
            data.view(-1, data.shape[-1]).narrow(axis, begin, end - begin)
        ]
        begin, end = (layout["row_scales"] for layout in (before, up_to))
        views.append(scales.narrow(scale_axis, begin, end - begin))
        is_by_row = amax is not None and bool(held[5] & FLAG_ROW_SCALED)
        return [*views, amax[first:last] if amax is not None and is_by_row else None]

    def _rows(self, first: int, last: int, shape: Sequence[int]) -> dict[str, Any]:
        self._make_current("narrow")
        metadata = {**self.get_metadata(), "shape": torch.Size(shape)}
        for columnwise, fields in enumerate(self._copy_fields):
            held = self._copy(bool(columnwise))
            if held is None:
                continue
            layout = copy_layout(held[3:], bool(columnwise), shape)
            data, scales, amax = self._row_views(bool(columnwise), first, last)
            assert data is not None and scales is not None
            data, scales = _padded(data, layout["data"]), _padded(scales, layout["scales"])
            sizes = shape if fields[0] in self._logical_buffers else layout["data"]
            amax = held[2] if amax is None else amax
            made = (data.view(sizes), scales, None if amax is None else amax.clone())
            for name, buffer in zip(fields, made, strict=False):
                metadata[self._buffer_keywords[name]] = buffer
        return metadata

    def _put_rows(self, first: int, last: int, rows: BlockScaledTensorStorage) -> None:
        count = last - first
        for columnwise in (False, True):
            if self._copy(columnwise) is None:
                continue
            sources = rows._row_views(columnwise, 0, count)
            for own, source in zip(self._row_views(columnwise, first, last), sources, strict=True):
                if own is not None and source is not None:
                    own.copy_(source)
        for buffer in self._buffers().values():
            count_write(buffer)

    def _common_amaxes(self) -> list[torch.Tensor]:
        held = (self._copy(columnwise) for columnwise in (False, True))
        return [
            copy[2]
            for copy in held
            if copy is not None and copy[2] is not None and not copy[5] & FLAG_ROW_SCALED
        ]

    def _separate_copies(self) -> list[BlockScaledTensorStorage]:
        """One for both copies where they have, or are made from, the same values."""
        held = [c for c in (False, True) if self._copy(c) is not None]
        is_one = self._is_derivable() or self._copy_format(True)[2] & FLAG_HADAMARD
        storages = []
        for copies in [held] if is_one else [[c] for c in held]:
            storage = self._storage_type()(**self.get_metadata())
            storage._drop_unwanted(False in copies, True in copies)
            storage._quantizer = self._require_quantizer("copy_").copy()
            storage._quantizer.set_usage(**storage.get_usages())
            storages.append(storage)
        return storages

    def _make_current(self, method: str) -> None:
        self._check_scales_readable(method)
        self._settle(method)

    def _tracked(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self._rowwise_data, self._columnwise_data

    @classmethod
    def _storage_type(cls) -> Any:
        """The class of this format's plain storages."""
        return next(
            base
            for base in cls.__mro__
            if not issubclass(base, torch.Tensor) and issubclass(base, BlockScaledTensorStorage)
        )

    # --- rows of several ranks ------------------------------------------------------------------

    # Rows of the matrix per row of a copy's scales; None for copies that cannot be concatenated.
    _scale_rows: ClassVar[tuple[int | None, int | None]] = (1, None)

    def _gathered_copies(self, usages: dict[str, bool]) -> list[bool]:
        """Which copies are gathered (columnwise or not); others are made from the rowwise one."""
        wanted = ((False, usages["rowwise"]), (True, usages["columnwise"]))
        copies = [c for c, is_wanted in wanted if is_wanted and self._scale_rows[c] is not None]
        return copies or [False]

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        """Data and scales of the copies to gather."""
        return tuple(f for c in self._gathered_copies(usages) for f in self._copy_fields[c][:2])

    def fsdp_extract_buffers(self, usages: dict[str, bool]) -> dict[str, torch.Tensor]:
        """Those buffers by name, without padding of rows.

        Raises
        ------
        ValueError
            If the rows are no whole blocks, or the rowwise copy is required and not held.
        NotImplementedError
            For scales in the order of a GPU's GEMM.
        """
        self._check_scales_readable("fsdp_pre_all_gather")
        self._settle("fsdp_pre_all_gather")
        self.fsdp_buffer_fields(usages)  # which refuses what cannot be gathered at all
        rows = matrix_shape(self._shape)[0]
        buffers: dict[str, torch.Tensor] = {}
        for columnwise in self._gathered_copies(usages):
            per_scale, held = self._scale_rows[columnwise], self._copy(columnwise)
            if held is None or held[0] is None or held[1] is None or per_scale is None:
                raise ValueError(
                    f"{type(self).__name__}.fsdp_pre_all_gather: the tensor holds only its "
                    "columnwise copy, whose rows cannot be gathered; the rowwise one is required. "
                    "Keep rowwise usage."
                )
            self._check_whole_blocks(rows, columnwise)
            names = self._copy_fields[columnwise]
            buffers[names[0]] = held[0]
            buffers[names[1]] = held[1][: rows // per_scale]
        return buffers

    def _tile_rows(self) -> int:
        """Rows of a square tile; 1 without tiles."""
        return 1

    def _check_whole_blocks(self, rows: int, columnwise: bool) -> None:
        """Refuse rows whose scales could not be one below the other."""
        block = max(self._scale_rows[columnwise] or 1, self._tile_rows())
        if rows % block:
            raise ValueError(
                f"{type(self).__name__}.fsdp_pre_all_gather: this rank has {rows} rows; a multiple "
                f"of {block} is required, whole blocks. Shard by fewer ranks, or pad the parameter."
            )

    def fsdp_assign_gathered(
        self, gathered: dict[str, torch.Tensor], usages: dict[str, bool], shape: torch.Size
    ) -> dict[str, Any]:
        """Metadata of the whole, of a shape, around gathered buffers; padding is put back.

        An amax is copied: a write to the whole must not change what this tensor's bytes mean.
        """
        metadata = self.get_metadata()
        for columnwise, names in enumerate(self._copy_fields):
            is_held = names[0] in gathered
            for name in names:
                own = getattr(self, name) if is_held and name not in gathered else None
                metadata[self._buffer_keywords[name]] = None if own is None else own.clone()
            if is_held:
                data, scales = gathered[names[0]], gathered[names[1]]
                layout = copy_layout(self._copy_format(bool(columnwise)), bool(columnwise), shape)
                padded = scales
                if tuple(scales.shape) != layout["scales"]:
                    padded = _padded(scales, layout["scales"])
                is_logical = names[0] in self._logical_buffers
                metadata[self._buffer_keywords[names[0]]] = data.view(shape) if is_logical else data
                metadata[self._buffer_keywords[names[1]]] = padded
        return metadata

    # --- values ---------------------------------------------------------------------------------

    def _dequantize_impl(self, dtype: torch.dtype) -> torch.Tensor:
        self._check_scales_readable("dequantize")
        rowwise, columnwise = self._current_copies("dequantize")
        if rowwise is None and columnwise is None:
            raise RuntimeError(
                f"{type(self).__name__}.dequantize: the tensor holds no data; it was moved out or "
                "dropped."
            )
        kernel_dtype = torch.float32 if dtype == torch.float64 else dtype
        if kernel_dtype not in TE_DType:
            kernel_dtype = torch.float32
        sizes = list(self._shape)
        values = tex.dequantize_copies(sizes, rowwise, columnwise, int(TE_DType[kernel_dtype]))
        return values.to(dtype)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A plain tensor of the values, exact up to one rounding to its dtype.

        Parameters
        ----------
        dtype : torch.dtype, optional
            Default the nominal dtype.
        """
        return self._dequantize_impl(dtype or self._dtype)


def _padded(rows: torch.Tensor, sizes: tuple[int, int]) -> torch.Tensor:
    """A copy of a matrix, with zeros up to some sizes."""
    if tuple(rows.shape) == tuple(sizes):
        return rows.clone(memory_format=torch.contiguous_format)
    padded = rows.new_zeros(sizes)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    return padded
