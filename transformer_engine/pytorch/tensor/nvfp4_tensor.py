# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""NVFP4: E2M1 elements, an E4M3 scale for every 16 of them, one FP32 amax for all.

Rule, in FP32: S = 6 * 448 / amax (1 for an amax of 0, Inf or NaN); per block of 16 along K (rowwise
copy) or M (columnwise copy) d = E4M3(block amax * S / 6) and q = E2M1(x / (d / S)), saturating. An
element stands for q * d * amax / (6 * 448). Details, with the order of the roundings:
docs/numerics.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.distributed import ProcessGroup

from transformer_engine.common.recipe import Recipe

from ..arguments import check_choice, check_flag, check_group, received
from ..constants import DType
from ..cpp_extensions import cast as tex
from .block_quantizer import BlockScaledQuantizer
from .block_scaled_tensor import BlockScaledTensor
from .core_quantizer import core_setting, is_common, reduce_amax
from .quantized_tensor import aten
from .quantizer import checked_attribute, checked_group, register_core
from .shared_view_tensor import raw_views
from .storage.block_scaled_storage import BlockScaledTensorStorage, Copy
from .storage.nvfp4_tensor_storage import NVFP4TensorStorage
from .storage.write_tracking import count_write

__all__ = ["NVFP4Quantizer", "NVFP4Tensor", "NVFP4TensorStorage"]

_FLAGS = (
    *("with_amax_reduction", "with_rht", "with_post_rht_amax", "with_2d_quantization"),
    *("stochastic_rounding", "row_scaled_nvfp4", "nvfp4_use_4over6", "with_random_sign_mask"),
)


def _check_e4m3_max(owner: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or value not in (448, 256):
        raise ValueError(f"{owner}: {name} is {received(value)}; 448 or 256 is required.")
    return int(value)


class NVFP4Quantizer(BlockScaledQuantizer):
    """Quantizer of NVFP4.

    Parameters
    ----------
    fp4_dtype : DType, default kFloat4E2M1
        No other is known.
    rowwise, columnwise : bool, default True
        Which copies to make.
    with_amax_reduction : bool, default False
        Take the maximum of the amaxes over `amax_reduction_group`.
    amax_reduction_group : ProcessGroup, optional
        Default all processes.
    with_rht : bool, default False
        Transform the columnwise copy: groups of 16 rows are multiplied by diag(signs) * H16 / 4.
    with_post_rht_amax : bool, default False
        Take the columnwise copy's amax after the transform.
    with_2d_quantization : bool, default False
        The blocks of a 16 x 16 tile share a scale, so that both copies have the same values.
    stochastic_rounding : bool, default False
        Round up or down by chance, right on average; random bits come from a seed that torch's
        default CPU generator gives.
    row_scaled_nvfp4 : bool, default False
        An amax per row, of the rowwise copy.
    nvfp4_use_4over6 : bool, default False
        Each block's amax maps to 6 or to 4, whichever has the smaller error.
    nvfp4_e4m3_max : {448, 256}
        Largest block scale.
    nvfp4_4over6_err_mode : {"MAE", "MSE"}
        The error to compare: of absolute values or of squares.
    with_random_sign_mask : bool, default True
        The signs of the transform are a fixed mixture; otherwise all are plus.

    Raises
    ------
    ValueError
        For 4-over-6 with the transform or stochastic rounding; a row-scaled format with one of
        these, tiles or a reduction; and unknown values.
    """

    _setting_names: ClassVar[tuple[str, ...]] = (
        *("fp4_dtype", "amax_reduction_group", "nvfp4_e4m3_max", "nvfp4_4over6_err_mode"),
        *_FLAGS,
    )
    _storage_class: ClassVar[type[BlockScaledTensorStorage]] = NVFP4TensorStorage

    def __init__(  # noqa: PLR0913  # frozen public signature
        self,
        fp4_dtype: DType = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: ProcessGroup | None = None,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        with_random_sign_mask: bool = True,
    ) -> None:
        given = locals()
        owner = type(self).__name__
        self._checked_dtype(owner, fp4_dtype)
        _check_e4m3_max(owner, "nvfp4_e4m3_max", nvfp4_e4m3_max)
        check_choice(owner, "nvfp4_4over6_err_mode", nvfp4_4over6_err_mode, ("MAE", "MSE"))
        check_group(owner, "amax_reduction_group", amax_reduction_group)
        flags = {name: check_flag(owner, name, given[name]) for name in _FLAGS}
        _check_combination(owner, flags)
        settings: dict[str, Any] = {
            **flags,
            "nvfp4_e4m3_max": nvfp4_e4m3_max,
            "nvfp4_4over6_err_mode": nvfp4_4over6_err_mode,
        }
        super().__init__(settings, rowwise=rowwise, columnwise=columnwise)
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode
        self.amax_reduction_group = amax_reduction_group
        self.with_amax_reduction = flags["with_amax_reduction"]

    @staticmethod
    def _make_core(settings: dict[str, Any], rowwise: bool, columnwise: bool) -> Any:
        return tex.NVFP4QuantizerCore(
            rowwise=rowwise,
            columnwise=columnwise,
            with_rht=settings["with_rht"],
            with_post_rht_amax=settings["with_post_rht_amax"],
            with_2d_quantization=settings["with_2d_quantization"],
            stochastic_rounding=settings["stochastic_rounding"],
            row_scaled=settings["row_scaled_nvfp4"],
            four_over_six=settings["nvfp4_4over6_err_mode"] if settings["nvfp4_use_4over6"] else "",
            e4m3_max=settings["nvfp4_e4m3_max"],
            sign_mask=tex.HADAMARD_SIGNS if settings["with_random_sign_mask"] else 0,
        )

    with_rht: bool = core_setting("with_rht", "Transform the columnwise copy.")
    with_post_rht_amax: bool = core_setting(
        "with_post_rht_amax", "Take the columnwise copy's amax after the transform."
    )
    with_2d_quantization: bool = core_setting(
        "with_2d_quantization", "The blocks of a 16 x 16 tile share a scale."
    )
    stochastic_rounding: bool = core_setting("stochastic_rounding", "Round by chance.")
    row_scaled_nvfp4: bool = core_setting(
        "row_scaled_nvfp4", "An amax per row.", core_name="row_scaled"
    )
    nvfp4_e4m3_max: int = core_setting(
        "nvfp4_e4m3_max", "Largest block scale.", _check_e4m3_max, "e4m3_max"
    )
    with_amax_reduction: bool = checked_attribute(
        "with_amax_reduction", "Take the maximum of the amaxes over a group."
    )
    amax_reduction_group: ProcessGroup | None = checked_attribute(
        "amax_reduction_group", "Default all processes.", checked_group
    )

    @property
    def with_random_sign_mask(self) -> bool:
        """The signs of the transform are a fixed mixture."""
        return bool(self._core.sign_mask)

    @with_random_sign_mask.setter
    def with_random_sign_mask(self, value: bool) -> None:
        is_mixed = check_flag(type(self).__name__, "with_random_sign_mask", value)
        self._core.sign_mask = tex.HADAMARD_SIGNS if is_mixed else 0

    @property
    def nvfp4_use_4over6(self) -> bool:
        """A block's amax maps to 6 or to 4."""
        return bool(self._core.four_over_six)

    @nvfp4_use_4over6.setter
    def nvfp4_use_4over6(self, value: bool) -> None:
        is_used = check_flag(type(self).__name__, "nvfp4_use_4over6", value)
        self._check_setting("nvfp4_use_4over6", is_used)
        self._core.four_over_six = self.nvfp4_4over6_err_mode if is_used else ""

    @property
    def nvfp4_4over6_err_mode(self) -> str:
        """The error to compare: of absolute values (MAE) or of squares (MSE)."""
        return self._err_mode

    @nvfp4_4over6_err_mode.setter
    def nvfp4_4over6_err_mode(self, value: str) -> None:
        check_choice(type(self).__name__, "nvfp4_4over6_err_mode", value, ("MAE", "MSE"))
        self._err_mode = value
        if self.nvfp4_use_4over6:
            self._core.four_over_six = value

    def _check_setting(self, name: str, value: Any) -> None:
        if value is True and name in _FLAGS:
            others = {flag: getattr(self, flag) for flag in _FLAGS if flag != name}
            _check_combination(type(self).__name__, {**others, name: value})

    @staticmethod
    def _checked_dtype(owner: str, value: Any) -> DType:
        dtype = DType.cast(value)
        if dtype != DType.kFloat4E2M1:
            raise ValueError(f"{owner}: fp4_dtype is {dtype.name}; kFloat4E2M1 is required.")
        return dtype

    @property
    def fp4_dtype(self) -> DType:
        """`dtype`, under the name of the constructor's argument."""
        return self.dtype

    @classmethod
    def from_core(cls, core: Any) -> NVFP4Quantizer:
        return cls(
            rowwise=core.rowwise_usage,
            columnwise=core.columnwise_usage,
            with_rht=core.with_rht,
            with_post_rht_amax=core.with_post_rht_amax,
            with_2d_quantization=core.with_2d_quantization,
            stochastic_rounding=core.stochastic_rounding,
            row_scaled_nvfp4=core.row_scaled,
            nvfp4_use_4over6=bool(core.four_over_six),
            nvfp4_e4m3_max=core.e4m3_max,
            nvfp4_4over6_err_mode=core.four_over_six or "MAE",
            with_random_sign_mask=bool(core.sign_mask),
        )

    def copy_for_tensor(self) -> NVFP4Quantizer:
        other = self.copy()
        other.with_amax_reduction = False
        other.amax_reduction_group = None
        return other

    def is_quantizable(self, tensor: torch.Tensor) -> bool:
        """False for the row-scaled format, whose tensors only a GEMM's input can be."""
        return not self.row_scaled_nvfp4

    def fits_recipe(self, recipe: Recipe) -> bool:
        return recipe.nvfp4() or super().fits_recipe(recipe)

    def _gathers_rowwise_alone(self) -> bool:
        return self.with_2d_quantization and not self.with_rht

    def _shard_quantizer(self, shard: Any, group: Any) -> NVFP4Quantizer | None:
        """All ranks' amaxes are those of the whole; of row scales, each rank has its rows'."""
        if self.row_scaled_nvfp4 and self.columnwise_usage:
            return None  # the columnwise copy has an amax of the tensor, which is not reduced then
        other = self.copy()
        if not self.row_scaled_nvfp4:
            other.amax_reduction_group, other.with_amax_reduction = group, True
        return other

    def _is_part_of_whole(self, shard: Any, group: Any) -> bool:
        if self.row_scaled_nvfp4:
            return True
        amaxes = [a for a in (shard._amax_rowwise, shard._amax_columnwise) if a is not None]
        return is_common(torch.cat(amaxes), group)

    def fsdp_shard(self, shard: Any, group: Any) -> Any:
        """The rows under one amax, which a write to this rank's alone may have changed."""
        if shard._amax_rowwise is None or is_common(shard._amax_rowwise, group):
            return shard
        quantizer = self.copy()
        quantizer.set_usage(rowwise=True, columnwise=False)
        quantizer.with_amax_reduction, quantizer.amax_reduction_group = True, group
        return quantizer.quantize_impl(shard)

    def _cast(self, source: torch.Tensor) -> tuple[Copy | None, Copy | None]:
        if not self.with_amax_reduction:
            return super()._cast(source)
        copies: tuple[Copy | None, Copy | None] = self._core.make_empty(list(source.shape), source)
        self._cast_into(source, *copies)
        return copies

    def _cast_into(
        self, source: torch.Tensor, rowwise: Copy | None, columnwise: Copy | None
    ) -> None:
        if not (self.with_amax_reduction and torch.distributed.is_initialized()):
            super()._cast_into(source, rowwise, columnwise)
            return
        self._core.compute_amax(source, rowwise, columnwise)
        amaxes = [copy[2] for copy in (rowwise, columnwise) if copy is not None]
        reduced = torch.stack([amax for amax in amaxes if amax is not None])
        reduce_amax(f"{type(self).__name__}.quantize", reduced, self.amax_reduction_group)
        for amax, value in zip(amaxes, reduced, strict=True):
            assert amax is not None
            amax.copy_(value)
        self._core.cast(source, rowwise, columnwise)


def _check_combination(owner: str, settings: dict[str, bool]) -> None:
    excluded = {
        "nvfp4_use_4over6": ("with_rht", "stochastic_rounding"),
        "row_scaled_nvfp4": (
            *("with_rht", "stochastic_rounding", "with_2d_quantization", "with_amax_reduction"),
        ),
    }
    for name, others in excluded.items():
        for other in others:
            if settings[name] and settings[other]:
                raise ValueError(
                    f"{owner}: {name} and {other} are both True; at most one may be. Turn one off."
                )


class NVFP4Tensor(BlockScaledTensor, NVFP4TensorStorage):  # type: ignore[misc]
    """A tensor held as NVFP4; its keywords are those of `BlockScaledTensor` and the storage."""


NVFP4TensorStorage.tensor_class = NVFP4Tensor
register_core(tex.NVFP4QuantizerCore, NVFP4Quantizer)


# --- torch operations: (tensor, func, args, kwargs) -> result ---


def _zero(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros need no quantizer: elements, scales and amaxes are 0."""
    for buffer in tensor._buffers().values():
        if buffer is not None:
            buffer.zero_()
            count_write(buffer)
    tensor._after_bytes_written()
    return tensor


NVFP4Tensor._handlers = {
    **raw_views(
        lambda tensor, shape: bool(tensor._keeps_buffers(shape)),
        ValueError,
        "the last axis must stay",
    ),
    aten.zero_.default: _zero,
}
