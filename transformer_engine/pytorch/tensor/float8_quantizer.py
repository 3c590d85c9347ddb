# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizers of per-tensor FP8: delayed and current scaling.

Rule: q = saturating round-to-nearest-even cast of x * scale; +-Inf and what is out of range become
+-max (448 for E4M3, 57344 for E5M2), NaN stays NaN; scale_inv = 1 / scale is stored with the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from transformer_engine.common.recipe import Recipe

from ..arguments import check_flag, check_tensor
from ..constants import DType
from ..cpp_extensions import cast as tex
from ..rank_errors import naming
from .core_quantizer import CoreQuantizer, check_destination, check_fp8_dtype
from .part_assembly import shares_bytes, span_of
from .quantizer import as_quantizable, is_noop, register_core
from .storage.float8_tensor_storage import Float8TensorStorage
from .storage.write_tracking import count_write, mark_written

_Float8QuantizerT = TypeVar("_Float8QuantizerT", bound="Float8QuantizerBase")


def _core_tensor(name: str) -> Any:
    """A float32 [1] tensor that lives in the native object."""

    def read(self: Float8Quantizer) -> Any:
        return getattr(self._core, name)

    def write(self: Float8Quantizer, value: Any) -> None:
        setattr(self._core, name, check_tensor(type(self).__name__, name, value))

    return property(read, write, doc="float32 [1].")


def _check_scale(scale: torch.Tensor) -> None:
    if type(scale) is not torch.Tensor or not scale.is_cpu or scale.numel() != 1:
        return  # values that cannot be read cheaply; the native object checks the shape
    value = scale.item()
    if not 0 < value < math.inf:
        raise ValueError(
            f"Float8Quantizer: scale is {value}; a positive finite number is required. Use 1 where "
            "nothing is known."
        )


class Float8QuantizerBase(CoreQuantizer):
    """What both per-tensor quantizers share: bytes and one scale."""

    def supports_only_rowwise_all_gather(self) -> bool:
        return True

    def fits_recipe(self, recipe: Recipe) -> bool:
        return recipe.float8_per_tensor_scaling() or super().fits_recipe(recipe)

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, ...]:
        """Shape of the scale of a tensor of some shape: always one element."""
        return (1,)

    def get_columnwise_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Shape of the transpose: [K, M], K the last axis, M the product of the others."""
        sizes = tuple(shape)
        return (sizes[-1] if sizes else 1, math.prod(sizes[:-1]))

    # --- making tensors -------------------------------------------------------------------------

    def _wrap(
        self,
        data: torch.Tensor | None,
        transpose: torch.Tensor | None,
        scale_inv: torch.Tensor,
        *,
        shape: torch.Size,
        dtype: torch.dtype,
        requires_grad: bool = False,
    ) -> Any:
        """The tensor, or the storage if `internal`, around new buffers."""
        keywords: dict[str, Any] = {
            "data": data,
            "data_transpose": transpose,
            "fp8_scale_inv": scale_inv,
            "fp8_dtype": self.dtype,
            "quantizer": self,
            "shape": shape,
            "dtype": dtype,
        }
        if self.internal:
            storage = Float8TensorStorage(**keywords)
            storage._mark_transpose_current()
            return storage
        tensor = Float8TensorStorage.tensor_class(requires_grad=requires_grad, **keywords)
        tensor._mark_transpose_current()
        return tensor

    def wrap_copies(
        self,
        rowwise: tuple[Any, ...] | None,
        columnwise: tuple[Any, ...] | None,
        *,
        shape: torch.Size,
        dtype: torch.dtype,
        requires_grad: bool = False,
    ) -> Any:
        held = rowwise or columnwise
        assert held is not None, "a copy is there"
        return self._wrap(
            None if rowwise is None else rowwise[0],
            None if columnwise is None else columnwise[0],
            held[1],
            shape=shape,
            dtype=dtype,
            requires_grad=requires_grad,
        )

    def _make_empty(
        self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool, options: dict[str, Any]
    ) -> Any:
        self._check_usages("make_empty")
        data = transpose = None
        if self.rowwise_usage:
            data = torch.empty(shape, dtype=torch.uint8, **options)
        if self.columnwise_usage:
            columnwise_shape = self.get_columnwise_shape(shape)
            transpose = torch.empty(columnwise_shape, dtype=torch.uint8, **options)
        scale_inv = torch.empty(1, dtype=torch.float32, **options)
        return self._wrap(
            data, transpose, scale_inv, shape=shape, dtype=dtype, requires_grad=requires_grad
        )

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """Quantize without autograd into new buffers; see `Quantizer.quantize`."""
        self._check_usages("quantize")
        source = as_quantizable(f"{type(self).__name__}.quantize", tensor)
        data, transpose, scale_inv = self._cast(source)
        return self._wrap(data, transpose, scale_inv, shape=source.shape, dtype=tensor.dtype)

    def _cast(
        self, source: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
        data, transpose, scale_inv = self._core.quantize(source)
        if transpose is not None and transpose.numel() == 0:
            transpose = transpose.reshape(self.get_columnwise_shape(source.shape))
        return data, transpose, scale_inv

    def _cast_into(
        self,
        source: torch.Tensor,
        data: torch.Tensor | None,
        transpose: torch.Tensor | None,
        scale_inv: torch.Tensor,
        noop_flag: torch.Tensor | None,
    ) -> None:
        self._core.update(source, data, transpose, scale_inv, noop_flag)

    # --- gathering shards -----------------------------------------------------------------------

    def quantize_shard(self, shard: Any, group: Any) -> Any:
        """This rank's rowwise bytes, with a scale that is the same on all ranks."""
        if isinstance(shard, Float8TensorStorage) and shard._data is not None:
            if self._is_scale_common(shard, group):
                return shard
            shard = shard.dequantize()
        quantizer = self._with_common_scale(group)
        quantizer.set_usage(rowwise=True, columnwise=False)
        return quantizer.quantize_impl(shard)

    def fsdp_shard(self, shard: Any, group: Any) -> Any:
        return self.quantize_shard(shard, group)

    def _is_scale_common(self, shard: Float8TensorStorage, group: Any) -> bool:
        return True  # delayed scaling: scales follow from amaxes reduced over all ranks

    def _with_common_scale(self: _Float8QuantizerT, group: Any) -> _Float8QuantizerT:
        return self.copy()

    def join_shards(
        self, shard: Any, ranks: int, out: Any
    ) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
        shape = torch.Size((ranks * shard._data.shape[0], *shard._data.shape[1:]))
        if out is None:
            data = shard._data.new_empty(shape)
            out = self._wrap(data, None, shard._scale_inv, shape=shape, dtype=shard._dtype)
        elif out._data is None:
            out._data = shard._data.new_empty(shape)
        out._fp8_dtype = shard._fp8_dtype
        out._scale_inv = shard._scale_inv
        return out, [(shard._data, out._data)]

    # --- overwriting tensors --------------------------------------------------------------------

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        """Overwrite bytes and scale of a tensor; see `Quantizer.update_quantized`.

        The transpose is refreshed if the quantizer makes one or the tensor has nothing else, and
        declared stale otherwise. For a view (slice, row, transpose), the whole tensor it belongs to
        is cast again, with the new values in their place.

        Raises
        ------
        TypeError, ValueError
            If `dst` is no FP8 tensor or has another shape; if it is a view of a tensor of another
            FP8 format, or one in which several elements share a byte.
        """
        owner = f"{type(self).__name__}.update_quantized"
        check_destination(owner, src, dst, Float8TensorStorage)
        if is_noop(owner, noop_flag):
            return dst
        source = as_quantizable(owner, src).to(dst.device)
        if dst._whole is not None:
            self._update_part(owner, source, dst, dst._whole)
            return dst
        dst._fp8_dtype = self.dtype
        data, transpose = dst._data, None
        if data is None or self.columnwise_usage:
            if dst._transpose is None:
                shape = self.get_columnwise_shape(dst.size())
                dst._transpose = source.new_empty(shape, dtype=torch.uint8)
            transpose = dst._transpose
        if data is None or data.is_contiguous():
            self._cast_into(source, data, transpose, dst._scale_inv, None)
        else:
            packed = torch.empty_like(source, dtype=torch.uint8)
            self._cast_into(source, packed, transpose, dst._scale_inv, None)
            data.copy_(packed)
        for buffer in (data, transpose, dst._scale_inv):
            count_write(buffer)
        if transpose is None:
            dst._reset_caches()
            mark_written(data, None)
        else:
            dst._after_bytes_written()
        return dst

    def _update_part(
        self, owner: str, source: torch.Tensor, dst: Float8TensorStorage, whole: Float8TensorStorage
    ) -> None:
        part, everything = dst._data, whole._data
        if part is None or everything is None:  # given away by prepare_for_saving
            raise RuntimeError(f"{owner}: dst holds no bytes; they were moved out or dropped.")
        if self.dtype != whole._fp8_dtype:
            raise ValueError(
                f"{owner}: dst is a view of a tensor of {whole._fp8_dtype.name}, the quantizer "
                f"makes {self.dtype.name}; the same format is required. Use copy_ on the whole "
                "tensor."
            )
        values = _written_whole(owner, source, part, whole)
        if everything.is_contiguous():
            self._cast_into(values, everything, None, whole._scale_inv, None)
        else:
            packed = torch.empty_like(values, dtype=torch.uint8)
            self._cast_into(values, packed, None, whole._scale_inv, None)
            everything.copy_(packed)
        for buffer in (everything, whole._scale_inv):
            count_write(buffer)
        dst._reset_caches()
        mark_written(everything, None)


def _written_whole(
    owner: str, source: torch.Tensor, part: torch.Tensor, whole: Float8TensorStorage
) -> torch.Tensor:
    """float32 of the shape of the whole: its values, with those of `source` in place of a part's.

    `part` and the bytes of the whole are views of one memory; where the part lies in the whole is
    said by its strides and offset alone, whatever operations led to it.
    """
    everything: Any = whole._data
    if shares_bytes(part):
        raise RuntimeError(
            f"{owner}: dst has shape {tuple(part.shape)} and strides {part.stride()}, in which "
            "several elements share one byte; one for each is required. Write to a view that is "
            "not expanded."
        )
    values = torch.zeros(span_of(everything), dtype=torch.float32, device=everything.device)
    start = part.storage_offset() - everything.storage_offset()
    if start < 0 or start + span_of(part) > values.numel():
        raise ValueError(
            f"{owner}: dst reaches bytes {start} to {start + span_of(part)} of a tensor of "
            f"{values.numel()} bytes; a part must lie inside."
        )
    result = values.as_strided(everything.shape, everything.stride(), 0)
    result.copy_(whole._dequantize_impl(torch.float32))
    values.as_strided(part.shape, part.stride(), start).copy_(source)
    return result.contiguous()


class Float8Quantizer(Float8QuantizerBase):
    """Per-tensor FP8 with a scale known beforehand (delayed scaling).

    Parameters
    ----------
    scale : torch.Tensor
        float32 [1]: what to multiply by. Referred to, not copied; read at every cast.
    amax : torch.Tensor
        float32 [1]: raised to max |x| at every cast. Referred to, not copied.
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    rowwise, columnwise : bool, default True
        Which copies to make.

    Raises
    ------
    TypeError, ValueError
        If `scale` or `amax` is no float32 tensor of one element; if the scale, where the CPU can
        read it, is not positive and finite.
    """

    def __init__(
        self,
        scale: torch.Tensor,
        amax: torch.Tensor,
        fp8_dtype: DType,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        owner = "Float8Quantizer"
        dtype = check_fp8_dtype(owner, fp8_dtype)
        _check_scale(check_tensor(owner, "scale", scale))
        check_tensor(owner, "amax", amax)
        core = tex.Float8QuantizerCore(
            *(scale, amax, int(dtype)),
            *(check_flag(owner, "rowwise", rowwise), check_flag(owner, "columnwise", columnwise)),
        )
        super().__init__(core, rowwise=rowwise, columnwise=columnwise)

    scale: torch.Tensor = _core_tensor("scale")
    amax: torch.Tensor = _core_tensor("amax")

    def copy(self) -> Float8Quantizer:
        """A quantizer of its own that shares scale and amax."""
        other = Float8Quantizer.from_core(self._core)
        self._copy_settings_to(other)
        return other

    @classmethod
    def from_core(cls, core: Any) -> Float8Quantizer:
        # Not by the constructor: views of a tensor are made also while its scale is unusable.
        usages = (core.rowwise_usage, core.columnwise_usage)
        own = tex.Float8QuantizerCore(core.scale, core.amax, core.fp8_dtype, *usages)
        other = Float8Quantizer.__new__(Float8Quantizer)
        Float8QuantizerBase.__init__(other, own, rowwise=usages[0], columnwise=usages[1])
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Float8Quantizer:
        other = self.copy()
        # Through the memo: buffers that a recipe state copies too stay shared with it.
        other.scale = _deepcopy_tensor(self.scale, memo)
        other.amax = _deepcopy_tensor(self.amax, memo)
        memo[id(self)] = other
        return other

    def __reduce__(self) -> Any:
        settings = (self.rowwise_usage, self.columnwise_usage)
        flags = (self.internal, self.optimize_for_gemm)
        arguments = (type(self), self.scale, self.amax, int(self.dtype), settings, flags)
        return (_make_float8_quantizer, arguments)

    def fsdp_shard_of_few_rows(self, shard: Any, group: Any) -> Any:
        """The rows; a rank that has none, to which no load or copy gives a scale, asks the others.

        Those that have rows agree: see `_is_scale_common`.
        """
        has_rows = shard.numel() > 0
        common = shard._scale_inv.clone() if has_rows else torch.zeros_like(shard._scale_inv)
        with naming("fsdp_pre_all_gather", "all-reduce of scales", group):
            torch.distributed.all_reduce(common, op=torch.distributed.ReduceOp.MAX, group=group)
        if has_rows or common.item() == 0.0:
            return shard
        return type(shard)(**{**shard.get_metadata(), "fp8_scale_inv": common})

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Overwrite amax with max |x|."""
        self._core.calibrate(as_quantizable("Float8Quantizer.calibrate", tensor))

    def create_tensor_from_data(
        self,
        data: torch.Tensor,
        fake_dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
        internal: bool = False,
    ) -> Any:
        """A tensor around existing bytes, cast with the present scale.

        Parameters
        ----------
        data : torch.Tensor
            uint8 (or a float8 dtype), the logical shape. Referred to, not copied.
        fake_dtype : torch.dtype, default torch.float32
            Nominal dtype.
        requires_grad, internal : bool, default False
            As of a tensor; give the storage instead.
        """
        quantizer = self.copy()
        quantizer.internal = internal or self.internal
        return tensor_from_data(quantizer, data, self.scale.reciprocal(), fake_dtype, requires_grad)


def tensor_from_data(
    quantizer: Float8QuantizerBase,
    data: torch.Tensor,
    scale_inv: torch.Tensor,
    dtype: torch.dtype,
    requires_grad: bool,
) -> Any:
    if data.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        data = data.view(torch.uint8)
    if data.dtype != torch.uint8:
        raise ValueError(
            f"{type(quantizer).__name__}.create_tensor_from_data: data has dtype {data.dtype}; "
            "uint8 or a float8 dtype is required."
        )
    return quantizer._wrap(
        data, None, scale_inv, shape=data.shape, dtype=dtype, requires_grad=requires_grad
    )


def _deepcopy_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.clone()
    copied: torch.Tensor = memo[id(tensor)]
    return copied


def _make_float8_quantizer(
    cls: type[Float8Quantizer],
    scale: torch.Tensor,
    amax: torch.Tensor,
    fp8_dtype: int,
    usages: tuple[bool, bool],
    flags: tuple[bool, bool],
) -> Float8Quantizer:
    quantizer = cls(scale, amax, DType(fp8_dtype), rowwise=usages[0], columnwise=usages[1])
    quantizer.internal, quantizer.optimize_for_gemm = flags
    return quantizer


register_core(tex.Float8QuantizerCore, Float8Quantizer)
