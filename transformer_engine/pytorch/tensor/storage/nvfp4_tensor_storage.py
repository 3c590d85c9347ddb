# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""NVFP4: value = E2M1 element, times the E4M3 scale of its block of 16, times amax / (6 * 448)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...constants import NVFP4_BLOCK_SCALING_SIZE, DType
from .block_scaled_storage import (
    BLOCK_BUFFERS,
    FLAG_HADAMARD,
    FLAG_ROW_SCALED,
    FLAG_SCALES_TO_256,
    FLAG_SQUARE_TILES,
    KIND_NVFP4,
    BlockScaledTensorStorage,
    Copy,
    Setting,
    copy_layout,
    matrix_shape,
)


class NVFP4TensorStorage(BlockScaledTensorStorage):
    """NVFP4 data of one tensor.

    Parameters
    ----------
    rowwise_data : torch.Tensor, optional
        uint8 [M, K rounded up to 16, / 2]: two elements a byte, the even one in the low half.
    rowwise_scale_inv : torch.Tensor, optional
        uint8 E4M3 codes [M rounded up to 128, K / 16 rounded up to 4], 0 beyond the matrix.
    columnwise_data, columnwise_scale_inv : torch.Tensor, optional
        The same of the transpose, [K, M].
    amax_rowwise, amax_columnwise : torch.Tensor, optional
        float32 [1], or [M] with `row_scaled_nvfp4`: what the copies were scaled by.
    fp4_dtype : DType, default kFloat4E2M1
        No other is known.
    quantizer : Quantizer, optional
        For in-place updates; kept as it is.
    with_gemm_swizzled_scales : bool, default False
        The scales have the order of a GPU's GEMM, which nothing here can read.
    row_scaled_nvfp4, nvfp4_use_4over6, nvfp4_e4m3_max, with_2d_quantization, with_rht : optional
        As of `NVFP4Quantizer`; default as the quantizer says, else its defaults.
    shape : sequence of int, optional
        Logical shape; default [M, K] as far as the data tells.
    dtype : torch.dtype, default torch.float32
        Nominal dtype.
    """

    _buffer_keywords: ClassVar[dict[str, str]] = {
        **BLOCK_BUFFERS,
        "_amax_rowwise": "amax_rowwise",
        "_amax_columnwise": "amax_columnwise",
    }
    _copy_fields: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (
        ("_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise"),
        ("_columnwise_data", "_columnwise_scale_inv", "_amax_columnwise"),
    )
    _settings: ClassVar[dict[str, Setting]] = {
        "_fp4_dtype": Setting("fp4_dtype", DType.cast, DType.kFloat4E2M1),
        "_with_gemm_swizzled_scales": Setting("with_gemm_swizzled_scales", bool, False),
        "_row_scaled_nvfp4": Setting("row_scaled_nvfp4", bool, False),
        "_nvfp4_use_4over6": Setting("nvfp4_use_4over6", bool, False),
        "_nvfp4_e4m3_max": Setting("nvfp4_e4m3_max", int, 448),
        "_with_2d_quantization": Setting("with_2d_quantization", bool, False),
        "_with_rht": Setting("with_rht", bool, False),
    }

    _amax_rowwise: torch.Tensor | None
    _amax_columnwise: torch.Tensor | None
    _fp4_dtype: DType
    _with_gemm_swizzled_scales: bool
    _row_scaled_nvfp4: bool
    _nvfp4_use_4over6: bool
    _nvfp4_e4m3_max: int
    _with_2d_quantization: bool
    _with_rht: bool

    def _shape_of_buffers(self) -> torch.Size:
        for data, is_transposed in ((self._rowwise_data, False), (self._columnwise_data, True)):
            if data is not None:
                sizes = (data.shape[0], 2 * data.shape[1])
                return torch.Size(sizes[::-1] if is_transposed else sizes)
        raise self._no_shape()

    def _data_shape(self, columnwise: bool) -> Sequence[int]:
        rows, cols = matrix_shape(self._shape)[:: -1 if columnwise else 1]
        return rows, -(-cols // NVFP4_BLOCK_SCALING_SIZE) * NVFP4_BLOCK_SCALING_SIZE // 2

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        return len(shape) > 0 and matrix_shape(shape) == matrix_shape(self._shape)

    def _tile_rows(self) -> int:
        return NVFP4_BLOCK_SCALING_SIZE

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        """The rowwise copy of square tiles; the columnwise one is made from it on demand.

        Raises
        ------
        ValueError
            Without tiles, as the columnwise copy could not be had.
        """
        if not self._with_2d_quantization:
            raise ValueError(
                f"{type(self).__name__}.fsdp_pre_all_gather: with_2d_quantization is False; only "
                "tensors of 16 x 16 tiles can be gathered. Use it for parameters."
            )
        return super().fsdp_buffer_fields(usages)

    def _copy_format(self, columnwise: bool) -> tuple[int, int, int]:
        flags = (
            FLAG_SQUARE_TILES * self._with_2d_quantization
            | FLAG_ROW_SCALED * (self._row_scaled_nvfp4 and not columnwise)
            | FLAG_HADAMARD * (self._with_rht and columnwise)
            | FLAG_SCALES_TO_256 * (self._nvfp4_e4m3_max == 256)
        )
        return KIND_NVFP4, int(self._fp4_dtype), flags

    @classmethod
    def _settings_of_format(cls, copy_format: tuple[int, int, int]) -> dict[str, Any]:
        _, dtype, flags = copy_format
        return {
            "fp4_dtype": DType(dtype),
            "row_scaled_nvfp4": bool(flags & FLAG_ROW_SCALED),
            "nvfp4_e4m3_max": 256 if flags & FLAG_SCALES_TO_256 else 448,
            "with_2d_quantization": bool(flags & FLAG_SQUARE_TILES),
        }

    @classmethod
    def _settings_of_copies(cls, rowwise: Copy | None, columnwise: Copy | None) -> dict[str, Any]:
        settings = super()._settings_of_copies(rowwise, columnwise)
        if columnwise is not None:
            settings["with_rht"] = bool(columnwise[5] & FLAG_HADAMARD)
        return settings

    def _is_derivable(self) -> bool:
        return self._with_2d_quantization and not self._with_rht

    def _derived(self, columnwise: bool) -> list[torch.Tensor | None]:
        """One copy from the other: for tiles, its transpose."""
        held = self._copy(not columnwise)
        assert self._is_derivable() and held is not None
        data, scales, amax = held[:3]
        assert data is not None and scales is not None and amax is not None
        rows, cols = matrix_shape(self._shape)[:: 1 if columnwise else -1]  # of what is held
        layout = copy_layout(self._copy_format(columnwise), columnwise, self._shape)
        elements = torch.stack((data & 15, data >> 4), dim=2).view(data.shape[0], -1)
        transposed = data.new_zeros(layout["data"][0], 2 * layout["data"][1])
        transposed[:, :rows] = elements[:, :cols].t()
        made = scales.new_zeros(layout["scales"])
        # The rows of a tile have the same scales; those of the transpose are spread over its rows.
        blocks = scales[:rows:NVFP4_BLOCK_SCALING_SIZE].t()
        spread = blocks.repeat_interleave(NVFP4_BLOCK_SCALING_SIZE, dim=0)[:cols]
        made[:cols, : spread.shape[1]] = spread
        return [transposed[:, ::2] | (transposed[:, 1::2] << 4), made, amax.clone()]

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Demand (True), drop (False) or keep (None) the two copies.

        With square tiles and no transform the columnwise copy is made from the rowwise one where
        both are wanted.

        Raises
        ------
        RuntimeError
            If a demanded copy is not there and cannot be made; nothing is changed then.
        """
        rowwise, columnwise = self._wanted_usages(rowwise_usage, columnwise_usage)
        self._settle_wanted(rowwise, columnwise)
        held = self.get_usages()
        if rowwise and not held["rowwise"]:
            raise RuntimeError(self._missing_usage("rowwise"))
        if columnwise and not held["columnwise"]:
            if not (self._with_2d_quantization and not self._with_rht and rowwise):
                raise RuntimeError(
                    self._missing_usage(
                        "columnwise",
                        "Quantize again, or keep the rowwise copy of a tensor of square tiles.",
                    )
                )
            self._check_scales_readable("update_usage")
            self._create_columnwise()
        self._drop_unwanted(rowwise, columnwise)
