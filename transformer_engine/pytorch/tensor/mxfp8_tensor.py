# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""MXFP8: FP8 with a power of two (E8M0) for every 32 elements.

Rule, per block of 32 along K (rowwise copy) or M (columnwise copy): the scale is the smallest power
of two that is at least amax / fp8_max, 2^(code - 127) of a code in 0..254; q = saturating
round-to-nearest-even cast of x / scale.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from transformer_engine.common.recipe import Recipe

from ..arguments import check_flag
from ..constants import MXFP8_BLOCK_SCALING_SIZE, DType
from ..cpp_extensions import cast as tex
from .block_quantizer import BlockScaledQuantizer
from .block_scaled_tensor import BlockScaledTensor
from .core_quantizer import check_fp8_dtype, core_setting
from .fsdp_tensor import is_even_shard
from .part_tensor import part_view
from .quantized_tensor import aten, view_bytes
from .quantizer import register_core
from .shared_view_tensor import raw_views
from .storage.block_scaled_storage import BlockScaledTensorStorage, Copy, copy_layout, matrix_shape
from .storage.mxfp8_tensor_storage import MXFP8TensorStorage
from .storage.write_tracking import begin_part

__all__ = ["MXFP8Quantizer", "MXFP8Tensor", "MXFP8TensorStorage"]

# Rows of which scales need no padding, in both directions: a part of so many shares its scales.
_ROWS_WITHOUT_PADDING = 128


class MXFP8Quantizer(BlockScaledQuantizer):
    """Quantizer of MXFP8.

    Parameters
    ----------
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    rowwise, columnwise : bool, default True
        Which copies to make.
    with_2d_quantization : bool, default False
        The blocks of a 32 x 32 tile share a scale, so that both copies have the same values.
    """

    _setting_names: ClassVar[tuple[str, ...]] = ("fp8_dtype", "with_2d_quantization")
    _storage_class: ClassVar[type[BlockScaledTensorStorage]] = MXFP8TensorStorage

    def __init__(
        self,
        fp8_dtype: DType,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        owner = type(self).__name__
        settings = {
            "fp8_dtype": check_fp8_dtype(owner, fp8_dtype),
            "with_2d_quantization": check_flag(owner, "with_2d_quantization", with_2d_quantization),
        }
        super().__init__(settings, rowwise=rowwise, columnwise=columnwise)

    @staticmethod
    def _make_core(settings: dict[str, Any], rowwise: bool, columnwise: bool) -> Any:
        return tex.MXFP8QuantizerCore(
            int(settings["fp8_dtype"]), rowwise, columnwise, settings["with_2d_quantization"]
        )

    with_2d_quantization: bool = core_setting(
        "with_2d_quantization", "The blocks of a 32 x 32 tile share a scale."
    )

    @classmethod
    def from_core(cls, core: Any) -> MXFP8Quantizer:
        return cls(
            DType(core.fp8_dtype),
            rowwise=core.rowwise_usage,
            columnwise=core.columnwise_usage,
            with_2d_quantization=core.with_2d_quantization,
        )

    def is_requantization_safe(self) -> bool:
        return True

    def fits_recipe(self, recipe: Recipe) -> bool:
        return recipe.mxfp8() or super().fits_recipe(recipe)

    def get_columnwise_shape(self, shape: Any) -> tuple[int, ...]:
        """Shape of the columnwise data of a tensor of some shape: the same."""
        return tuple(shape)

    def create_tensor_from_data(
        self,
        data: torch.Tensor,
        scale_inv: torch.Tensor,
        fake_dtype: torch.dtype,
        fp8_dtype: DType = DType.kFloat8E4M3,
    ) -> Any:
        """A tensor around an existing rowwise copy; see `MXFP8TensorStorage` for its form.

        Parameters
        ----------
        data, scale_inv : torch.Tensor
            uint8, referred to.
        fake_dtype : torch.dtype
            Nominal dtype.
        fp8_dtype : DType, default kFloat8E4M3
            Type of the elements.
        """
        maker = self.copy()
        maker.dtype = fp8_dtype
        rowwise: Copy = (data, scale_inv, None, *maker._core.copy_format(False))
        return maker.wrap_copies(rowwise, None, shape=data.shape, dtype=fake_dtype)


class MXFP8Tensor(BlockScaledTensor, MXFP8TensorStorage):  # type: ignore[misc]
    """A tensor held as MXFP8; its keywords are those of `BlockScaledTensor` and the storage."""

    def reshape(self, *args: Any) -> Any:
        """`torch.Tensor.reshape` with the last axis unchanged.

        Raises
        ------
        RuntimeError
            For another last axis.
        """
        shape = self._shape_after(args)
        if not self._keeps_buffers(shape):
            raise RuntimeError(
                f"{type(self).__name__}.reshape: shape is {tuple(shape)}, the tensor's "
                f"{tuple(self.shape)}; the last axis must stay. Dequantize first."
            )
        return self._viewed(shape)


MXFP8TensorStorage.tensor_class = MXFP8Tensor
register_core(tex.MXFP8QuantizerCore, MXFP8Quantizer)


# --- torch operations: (tensor, func, args, kwargs) -> result ---


def _split(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Equal parts along axis 0 whose scales have no padding are MXFP8 tensors on the same data."""
    size = args[1]
    axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    length = tensor.shape[0] if tensor.dim() else 0
    rows = math.prod(tensor.shape[1:-1])
    is_whole = axis in (0, -tensor.dim()) and size > 0 and length % size == 0
    if not is_whole or tensor.dim() < 2:
        return part_view(tensor, func, args, kwargs)
    if length in (0, size):  # one part, with the padding of its scales
        return [tensor._alias()]
    if size * rows % _ROWS_WITHOUT_PADDING:
        return part_view(tensor, func, args, kwargs)
    tensor._check_scales_readable("split")
    tensor._settle("split")
    return [_part(tensor, i * size, size) for i in range(length // size)]


def _part(tensor: Any, start: int, length: int) -> Any:
    """[start : start + length] of axis 0, on the same data and scales."""
    shape = (length, *tensor.shape[1:])
    first, rows = (matrix_shape((n, *tensor.shape[1:]))[0] for n in (start, length))
    fields: dict[str, Any] = {}
    for name, columnwise in (("rowwise", False), ("columnwise", True)):
        held = tensor._copy(columnwise)
        if held is None:
            continue
        per_scale = MXFP8_BLOCK_SCALING_SIZE if columnwise else 1
        data = view_bytes(aten.slice.Tensor, held[0], 0, start, start + length)
        begin_part(held[0], data)
        begin, end = first // per_scale, (first + rows) // per_scale
        scales = view_bytes(aten.slice.Tensor, held[1], 0, begin, end)
        fields[f"{name}_data"], fields[f"{name}_scale_inv"] = data, scales
    return type(tensor).make_like(tensor, shape=shape, **fields)


def _new_zeros(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros of whole blocks stay MXFP8."""
    shape = tuple(args[1])
    is_whole = is_even_shard(tensor, torch.Size(shape)) and all(
        n % MXFP8_BLOCK_SCALING_SIZE == 0 for n in shape
    )
    dtype = kwargs.get("dtype") or tensor.dtype
    if not is_whole or dtype != tensor.dtype:
        return NotImplemented
    fields: dict[str, Any] = {}
    for name, columnwise in (("rowwise", False), ("columnwise", True)):
        held = tensor._copy(columnwise)
        if held is not None:
            options = {"dtype": torch.uint8, "device": kwargs.get("device") or tensor.device}
            layout = copy_layout(held[3:], columnwise, shape)
            fields[f"{name}_data"] = torch.zeros(shape, **options)
            fields[f"{name}_scale_inv"] = torch.zeros(layout["scales"], **options)
    return type(tensor).make_like(tensor, shape=shape, with_gemm_swizzled_scales=False, **fields)


MXFP8Tensor._handlers = {
    **raw_views(
        lambda tensor, shape: len(shape) > 1 and tensor._keeps_buffers(shape),
        ValueError,
        "two axes or more and the last one unchanged are required",
    ),
    aten.split.Tensor: _split,
    aten.new_zeros.default: _new_zeros,
}
