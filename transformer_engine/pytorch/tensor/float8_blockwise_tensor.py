# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 with an FP32 scale for every 128 elements, or every tile of 128 x 128.

Rule, per block along K (rowwise copy) or M (columnwise copy), or per tile: scale = fp8_max /
max(amax, amax_epsilon); 1 if that amax is 0, Inf or NaN; the largest finite number of the input's
dtype if the quotient overflows; its mantissa cleared (rounded down) with `force_pow_2_scales`;
q = saturating round-to-nearest-even cast of x * scale; stored is scale_inv = 1 / scale.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformer_engine.common.recipe import Recipe

from ..arguments import check_flag, received
from ..constants import DType
from ..cpp_extensions import cast as tex
from .block_quantizer import BlockScaledQuantizer
from .block_scaled_tensor import BlockScaledTensor
from .core_quantizer import check_amax_epsilon, check_fp8_dtype, core_setting
from .quantizer import register_core
from .shared_view_tensor import raw_views
from .storage.block_scaled_storage import BlockScaledTensorStorage
from .storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage

__all__ = ["Float8BlockQuantizer", "Float8BlockwiseQTensor", "Float8BlockwiseQTensorStorage"]


def _check_dim(owner: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or value not in (1, 2):
        raise ValueError(f"{owner}: {name} is {received(value)}; 1 or 2 is required.")
    return int(value)


class Float8BlockQuantizer(BlockScaledQuantizer):
    """Quantizer of FP8 blocks.

    Parameters
    ----------
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    rowwise, columnwise : bool
        Which copies to make.
    amax_epsilon : float, default 0.0
        Lower bound of a block's amax.
    force_pow_2_scales : bool, default True
        Powers of two only.
    block_scaling_dim : {2, 1}
        Tiles of 128 x 128, whose copies have the same values, or blocks of 1 x 128.
    """

    block_len = 128
    _setting_names: ClassVar[tuple[str, ...]] = (
        *("fp8_dtype", "amax_epsilon", "force_pow_2_scales", "block_scaling_dim"),
    )
    _storage_class: ClassVar[type[BlockScaledTensorStorage]] = Float8BlockwiseQTensorStorage

    def __init__(
        self,
        fp8_dtype: DType,
        *,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        owner = type(self).__name__
        settings = {
            "fp8_dtype": check_fp8_dtype(owner, fp8_dtype),
            "amax_epsilon": check_amax_epsilon(owner, "amax_epsilon", amax_epsilon),
            "force_pow_2_scales": check_flag(owner, "force_pow_2_scales", force_pow_2_scales),
            "block_scaling_dim": _check_dim(owner, "block_scaling_dim", block_scaling_dim),
        }
        super().__init__(settings, rowwise=rowwise, columnwise=columnwise)

    @staticmethod
    def _make_core(settings: dict[str, Any], rowwise: bool, columnwise: bool) -> Any:
        return tex.Float8BlockQuantizerCore(
            *(int(settings["fp8_dtype"]), rowwise, columnwise, settings["amax_epsilon"]),
            *(settings["force_pow_2_scales"], settings["block_scaling_dim"]),
        )

    amax_epsilon: float = core_setting(
        "amax_epsilon", "Lower bound of a block's amax.", check_amax_epsilon
    )
    force_pow_2_scales: bool = core_setting("force_pow_2_scales", "Powers of two only.")
    block_scaling_dim: int = core_setting(
        "block_scaling_dim", "2 for tiles of 128 x 128, 1 for blocks of 1 x 128.", _check_dim
    )

    @classmethod
    def from_core(cls, core: Any) -> Float8BlockQuantizer:
        return cls(
            DType(core.fp8_dtype),
            rowwise=core.rowwise_usage,
            columnwise=core.columnwise_usage,
            amax_epsilon=core.amax_epsilon,
            force_pow_2_scales=core.force_pow_2_scales,
            block_scaling_dim=core.block_scaling_dim,
        )

    def is_requantization_safe(self) -> bool:
        return True

    def _gathers_rowwise_alone(self) -> bool:
        return self.block_scaling_dim == 2

    def fits_recipe(self, recipe: Recipe) -> bool:
        return recipe.float8_block_scaling() or super().fits_recipe(recipe)


class Float8BlockwiseQTensor(BlockScaledTensor, Float8BlockwiseQTensorStorage):  # type: ignore[misc]
    """A tensor held as FP8 blocks; keywords as of `BlockScaledTensor` and the storage."""

    def _fixed_axes(self) -> str:
        return "last two axes" if self._is_2D_scaled else "last axis"


Float8BlockwiseQTensorStorage.tensor_class = Float8BlockwiseQTensor
register_core(tex.Float8BlockQuantizerCore, Float8BlockQuantizer)


Float8BlockwiseQTensor._handlers = raw_views(
    lambda tensor, shape: tensor.shape == shape,
    NotImplementedError,
    "here only the latter can be had. Call the tensor's view method",
)
