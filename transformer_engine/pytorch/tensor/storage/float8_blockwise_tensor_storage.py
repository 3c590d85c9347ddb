# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 blocks: value = byte decoded as E4M3 or E5M2, times the FP32 scale_inv of its block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...constants import DType
from ...cpp_extensions import cast as tex
from .block_scaled_storage import (
    BLOCK_BUFFERS,
    FLAG_POWERS_OF_TWO,
    KIND_FP8_BLOCKS,
    KIND_FP8_TILES,
    BlockScaledTensorStorage,
    Setting,
    copy_layout,
    matrix_shape,
)


class Float8BlockwiseQTensorStorage(BlockScaledTensorStorage):
    """FP8 data of one tensor with a scale for every 128 elements, or tile of 128 x 128.

    Parameters
    ----------
    rowwise_data : torch.Tensor, optional
        uint8, the logical shape.
    rowwise_scale_inv : torch.Tensor, optional
        float32. Of 1 x 128 blocks: [K / 128, M rounded up to 4], transposed; of tiles: [M / 128,
        K / 128 rounded up to 4]. 0 beyond the matrix.
    columnwise_data : torch.Tensor, optional
        uint8 [K, M], the transpose.
    columnwise_scale_inv : torch.Tensor, optional
        float32, as the rowwise one with M and K exchanged.
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    is_2D_scaled : bool
        Tiles instead of blocks.
    quantizer : Quantizer, optional
        For in-place updates; kept as it is.
    force_pow_2_scales : bool, optional
        All scales are powers of two; default as the quantizer says.
    shape : sequence of int, optional
        Logical shape; default that of the data, [M, K] without rowwise data.
    dtype : torch.dtype, default torch.float32
        Nominal dtype.
    """

    _buffer_keywords: ClassVar[dict[str, str]] = BLOCK_BUFFERS
    _logical_buffers: ClassVar[tuple[str, ...]] = ("_rowwise_data",)
    _scale_rows: ClassVar[tuple[int | None, int | None]] = (128, None)
    _settings: ClassVar[dict[str, Setting]] = {
        "_fp8_dtype": Setting("fp8_dtype", DType.cast),
        "_is_2D_scaled": Setting("is_2D_scaled", bool),
        "_force_pow_2_scales": Setting("force_pow_2_scales", bool, False),
    }

    _fp8_dtype: DType
    _is_2D_scaled: bool
    _force_pow_2_scales: bool

    def _shape_of_buffers(self) -> torch.Size:
        if self._rowwise_data is not None:
            return self._rowwise_data.shape
        if self._columnwise_data is not None:
            return torch.Size(self._columnwise_data.shape[::-1])
        raise self._no_shape()

    def _data_shape(self, columnwise: bool) -> Sequence[int]:
        return matrix_shape(self._shape)[::-1] if columnwise else self._shape

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        if self._is_2D_scaled and shape[-2:] != self._shape[-2:]:
            return False
        return len(shape) > 0 and matrix_shape(shape) == matrix_shape(self._shape)

    def _copy_format(self, columnwise: bool) -> tuple[int, int, int]:
        kind = KIND_FP8_TILES if self._is_2D_scaled else KIND_FP8_BLOCKS
        return kind, int(self._fp8_dtype), FLAG_POWERS_OF_TWO if self._force_pow_2_scales else 0

    @classmethod
    def _settings_of_format(cls, copy_format: tuple[int, int, int]) -> dict[str, Any]:
        kind, dtype, flags = copy_format
        return {
            "fp8_dtype": DType(dtype),
            "is_2D_scaled": kind == KIND_FP8_TILES,
            "force_pow_2_scales": bool(flags & FLAG_POWERS_OF_TWO),
        }

    def _is_derivable(self) -> bool:
        return self._is_2D_scaled

    def _derived(self, columnwise: bool) -> list[torch.Tensor | None]:
        """One copy from the other: for tiles, its transpose."""
        held = self._copy(not columnwise)
        assert self._is_2D_scaled and held is not None
        data, scales = held[:2]
        assert data is not None and scales is not None
        rows, cols = matrix_shape(self._shape)
        stored = (rows, cols) if columnwise else (cols, rows)
        made = data.new_empty(stored[::-1])
        tex.transpose_bytes(data.contiguous().view(stored), output=made)
        layout = copy_layout(self._copy_format(columnwise), columnwise, self._shape)
        spread = scales.new_zeros(layout["scales"])
        across, down = spread.shape[0], scales.shape[0]
        spread[:, :down] = scales[:, :across].t()
        return [made if columnwise else made.view(self._shape), spread]

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        """The rowwise copy of square tiles; the columnwise one is made from it on demand.

        Raises
        ------
        ValueError
            For blocks of 1 x 128, whose scales are stored transposed.
        """
        if not self._is_2D_scaled:
            raise ValueError(
                f"{type(self).__name__}.fsdp_pre_all_gather: is_2D_scaled is False; only tensors "
                "of 128 x 128 tiles can be gathered. Use block_scaling_dim=2 for parameters."
            )
        return super().fsdp_buffer_fields(usages)

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Demand (True), drop (False) or keep (None) the two copies.

        With square tiles the columnwise copy is made from the rowwise one where both are wanted.

        Raises
        ------
        AssertionError
            If neither copy would remain, or a demanded one is not there and cannot be made.
            Nothing is changed then.
        """
        rowwise, columnwise = self._wanted_usages(rowwise_usage, columnwise_usage)
        self._settle_wanted(rowwise, columnwise)
        held = self.get_usages()
        if not (rowwise or columnwise):
            raise AssertionError(
                f"{type(self).__name__}.update_usage: rowwise_usage and columnwise_usage would "
                "both be off; one copy must remain."
            )
        if rowwise and not held["rowwise"]:
            raise AssertionError(self._missing_usage("rowwise"))
        if columnwise and not held["columnwise"]:
            if not (self._is_2D_scaled and rowwise):
                raise AssertionError(
                    self._missing_usage(
                        "columnwise",
                        "Quantize again, or keep the rowwise copy of a tensor of square tiles.",
                    )
                )
            self._create_columnwise()
        self._drop_unwanted(rowwise, columnwise)
