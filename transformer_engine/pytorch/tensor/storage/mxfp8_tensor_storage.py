# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""MXFP8: value = byte decoded as E4M3 or E5M2, times 2^(code - 127) of its block of 32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...constants import MXFP8_BLOCK_SCALING_SIZE, DType
from .block_scaled_storage import (
    BLOCK_BUFFERS,
    FLAG_SQUARE_TILES,
    KIND_MXFP8,
    BlockScaledTensorStorage,
    Setting,
    copy_layout,
    matrix_shape,
)


class MXFP8TensorStorage(BlockScaledTensorStorage):
    """MXFP8 data of one tensor.

    Parameters
    ----------
    rowwise_data, columnwise_data : torch.Tensor, optional
        uint8, the logical shape; the columnwise copy is not transposed.
    rowwise_scale_inv : torch.Tensor, optional
        uint8 E8M0 codes [M rounded up to 128, K / 32 rounded up to 4], 0 beyond the matrix.
    columnwise_scale_inv : torch.Tensor, optional
        uint8 E8M0 codes [M / 32 rounded up to 4, K rounded up to 128].
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    quantizer : Quantizer, optional
        For in-place updates; kept as it is.
    with_gemm_swizzled_scales : bool, default False
        The scales have the order of a GPU's GEMM, which nothing here can read.
    with_2d_quantization : bool, optional
        The blocks of a 32 x 32 tile share a scale; default as the quantizer says.
    shape : sequence of int, optional
        Logical shape; default that of the data.
    dtype : torch.dtype, default torch.float32
        Nominal dtype.
    """

    _buffer_keywords: ClassVar[dict[str, str]] = BLOCK_BUFFERS
    _logical_buffers: ClassVar[tuple[str, ...]] = ("_rowwise_data", "_columnwise_data")
    _scale_rows: ClassVar[tuple[int | None, int | None]] = (1, MXFP8_BLOCK_SCALING_SIZE)
    _settings: ClassVar[dict[str, Setting]] = {
        "_fp8_dtype": Setting("fp8_dtype", DType.cast),
        "_with_gemm_swizzled_scales": Setting("with_gemm_swizzled_scales", bool, False),
        "_with_2d_quantization": Setting("with_2d_quantization", bool, False),
    }

    _fp8_dtype: DType
    _with_gemm_swizzled_scales: bool
    _with_2d_quantization: bool

    def _shape_of_buffers(self) -> torch.Size:
        for data in self.get_data_tensors():
            if data is not None:
                return data.shape
        raise self._no_shape()

    def _data_shape(self, columnwise: bool) -> Sequence[int]:
        return self._shape

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        return len(shape) > 0 and matrix_shape(shape) == matrix_shape(self._shape)

    def _tile_rows(self) -> int:
        return MXFP8_BLOCK_SCALING_SIZE if self._with_2d_quantization else 1

    def _copy_format(self, columnwise: bool) -> tuple[int, int, int]:
        flags = FLAG_SQUARE_TILES if self._with_2d_quantization else 0
        return KIND_MXFP8, int(self._fp8_dtype), flags

    def _is_derivable(self) -> bool:
        return self._with_2d_quantization

    def _derived(self, columnwise: bool) -> list[torch.Tensor | None]:
        """One copy from the other: for tiles, the same data, and a scale for each of 32 lines."""
        held = self._copy(not columnwise)
        assert self._with_2d_quantization and held is not None
        data, scales = held[:2]
        assert data is not None and scales is not None
        layout = copy_layout(self._copy_format(columnwise), columnwise, self._shape)
        made = scales.new_zeros(layout["scales"])
        size, (rows, cols) = MXFP8_BLOCK_SCALING_SIZE, matrix_shape(self._shape)
        down, across = -(-rows // size), -(-cols // size)
        if columnwise:
            tiles = scales[:rows:size, :across]
            made[:down, :cols] = tiles.repeat_interleave(size, dim=1)[:, :cols]
        else:
            tiles = scales[:down, :cols:size]
            made[:rows, :across] = tiles.repeat_interleave(size, dim=0)[:rows]
        return [data.clone(), made]

    @classmethod
    def _settings_of_format(cls, copy_format: tuple[int, int, int]) -> dict[str, Any]:
        _, dtype, flags = copy_format
        return {
            "fp8_dtype": DType(dtype),
            "with_2d_quantization": bool(flags & FLAG_SQUARE_TILES),
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
        wanted = self._wanted_usages(rowwise_usage, columnwise_usage)
        for name, is_wanted in zip(("rowwise", "columnwise"), wanted, strict=True):
            if is_wanted and not self.get_usages()[name]:
                raise RuntimeError(self._missing_usage(name))
        self._settle_wanted(*wanted)
        self._drop_unwanted(*wanted)
