# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizer of per-tensor FP8 with the scale of the tensor itself (current scaling)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ..constants import DType
from ..cpp_extensions import cast as tex
from ..rank_errors import naming
from .core_quantizer import (
    FP8_MAX,
    check_amax_epsilon,
    check_fp8_dtype,
    core_setting,
    is_common,
    reduce_amax,
)
from .float8_quantizer import Float8Quantizer, Float8QuantizerBase, tensor_from_data
from .quantizer import checked_attribute, checked_group, register_core
from .storage.float8_tensor_storage import Float8TensorStorage


class Float8CurrentScalingQuantizer(Float8QuantizerBase):
    """Per-tensor FP8 with a scale from the amax of the tensor being cast.

    scale = fp8_max / max(amax, amax_epsilon); 1 if that amax is 0, Inf or NaN; the largest finite
    FP32 if the quotient overflows; its mantissa cleared (rounded down) with `force_pow_2_scales`.

    Parameters
    ----------
    fp8_dtype : DType
        kFloat8E4M3 or kFloat8E5M2.
    device : torch.device, optional
        Where tensors are made by default.
    rowwise, columnwise : bool, default True
        Which copies to make.
    use_existing_amax : bool, default False
        Deprecated: cast with the scale of `amax` instead of measuring.
    with_amax_reduction : bool, default False
        Take the maximum of the amaxes over `amax_reduction_group`.
    amax_reduction_group : ProcessGroup, optional
        Default all processes.
    force_pow_2_scales : bool, default False
        Powers of two only.
    amax_epsilon : float, default 0.0
        Lower bound of the amax.
    scale, amax : torch.Tensor, optional
        Deprecated float32 [1] buffers: `amax` for `use_existing_amax`; `scale` is ignored.
    """

    def __init__(  # noqa: PLR0913  # frozen public signature
        self,
        fp8_dtype: DType,
        device: torch.device | str | None = None,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        use_existing_amax: bool = False,
        with_amax_reduction: bool = False,
        amax_reduction_group: ProcessGroup | None = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | None = None,
    ) -> None:
        dtype = check_fp8_dtype("Float8CurrentScalingQuantizer", fp8_dtype)
        if use_existing_amax or scale is not None or amax is not None:
            warnings.warn(
                "Float8CurrentScalingQuantizer: use_existing_amax, scale and amax are deprecated; "
                "the scale is measured on the tensor.",
                DeprecationWarning,
                stacklevel=2,
            )
        if use_existing_amax and amax is None:
            raise ValueError(
                "Float8CurrentScalingQuantizer: use_existing_amax is True, but amax is None; a "
                "float32 tensor of one element is required."
            )
        core = tex.Float8CurrentScalingQuantizerCore(
            int(dtype), rowwise, columnwise, force_pow_2_scales, amax_epsilon
        )
        super().__init__(core, rowwise=rowwise, columnwise=columnwise)
        self.device = None if device is None else torch.device(device)
        self.use_existing_amax = use_existing_amax
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.scale = scale
        self.amax = amax

    force_pow_2_scales: bool = core_setting("force_pow_2_scales", "Powers of two only.")
    amax_epsilon: float = core_setting(
        "amax_epsilon", "Lower bound of the amax.", check_amax_epsilon
    )
    with_amax_reduction: bool = checked_attribute("with_amax_reduction", "Reduce the amaxes.")
    amax_reduction_group: ProcessGroup | None = checked_attribute(
        "amax_reduction_group", "Over which group.", checked_group
    )

    def copy(self) -> Float8CurrentScalingQuantizer:
        """A quantizer of its own with the same settings."""
        other = Float8CurrentScalingQuantizer(
            self.dtype,
            self.device,
            rowwise=self.rowwise_usage,
            columnwise=self.columnwise_usage,
            with_amax_reduction=self.with_amax_reduction,
            amax_reduction_group=self.amax_reduction_group,
            force_pow_2_scales=self.force_pow_2_scales,
            amax_epsilon=self.amax_epsilon,
        )
        # Set here, without another deprecation warning.
        other.use_existing_amax = self.use_existing_amax
        other.scale, other.amax = self.scale, self.amax
        self._copy_settings_to(other)
        return other

    @classmethod
    def from_core(cls, core: Any) -> Float8CurrentScalingQuantizer:
        return cls(
            DType(core.fp8_dtype),
            rowwise=core.rowwise_usage,
            columnwise=core.columnwise_usage,
            force_pow_2_scales=core.force_pow_2_scales,
            amax_epsilon=core.amax_epsilon,
        )

    def copy_for_tensor(self) -> Float8CurrentScalingQuantizer:
        other = self.copy()
        other.with_amax_reduction = False
        other.amax_reduction_group = None
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Float8CurrentScalingQuantizer:
        other = memo[id(self)] = self.copy()
        return other

    def __reduce__(self) -> Any:
        # Process groups cannot be pickled; a reduction is set up again by its owner.
        settings = (
            *(self.rowwise_usage, self.columnwise_usage),
            *(self.force_pow_2_scales, self.amax_epsilon),
        )
        flags = (self.internal, self.optimize_for_gemm)
        return (_make_current_scaling_quantizer, (type(self), int(self.dtype), settings, flags))

    def _value(self) -> tuple[Any, ...]:
        return (
            *(type(self), self.dtype, self.rowwise_usage, self.columnwise_usage, self.internal),
            *(self.force_pow_2_scales, self.amax_epsilon, self.with_amax_reduction),
            *(self.use_existing_amax, id(self.amax_reduction_group), id(self.amax)),
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Float8CurrentScalingQuantizer) and self._value() == other._value()

    def __hash__(self) -> int:
        try:
            return hash(self._value())
        except AttributeError:
            # torch.compile hashes what it meets, also an object whose __init__ has not ended: that
            # one lacks settings, and equals nothing but itself.
            return object.__hash__(self)

    def is_requantization_safe(self) -> bool:
        return True

    def _with_common_scale(self, group: Any) -> Float8CurrentScalingQuantizer:
        other = self.copy()
        other.with_amax_reduction = True
        other.amax_reduction_group = group
        return other

    def _is_scale_common(self, shard: Float8TensorStorage, group: Any) -> bool:
        # Whoever quantized the shard may not have reduced its amax.
        return is_common(shard._scale_inv, group)

    def fsdp_shard(self, shard: Any, group: Any) -> Any:
        """The rows under the scale of the rank with the largest, whose bytes stay as they are.

        That is the scale of the whole; only rows that were rounded under a finer one are rounded
        again, from their FP32 values.
        """
        if shard._data is None:
            return self.quantize_shard(shard, group)
        own = shard._scale_inv
        # Scaled by nothing; rows of zeros have 1.0, no rows may have any.
        may_be_zero = own.item() == 1.0 or shard._data.numel() == 0
        is_zero = may_be_zero and not shard._data.bitwise_and(0x7F).any()
        common = torch.zeros_like(own) if is_zero else own.clone()
        with naming("fsdp_pre_all_gather", "all-reduce of scales", group):
            torch.distributed.all_reduce(common, op=torch.distributed.ReduceOp.MAX, group=group)
        if torch.equal(common, own) or common.item() == 0.0:
            return shard
        quantizer = Float8Quantizer(
            common.reciprocal(), torch.zeros_like(own), self.dtype, rowwise=True, columnwise=False
        )
        result = quantizer.quantize_impl(shard.dequantize(dtype=torch.float32))
        fields = {**shard.get_metadata(), "data": result._data, "fp8_scale_inv": common}
        return type(shard)(**{**fields, "data_transpose": None})

    def _default_device(self) -> torch.device | None:
        return self.device

    def _cast(
        self, source: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
        if not (self.with_amax_reduction or self.use_existing_amax):
            return super()._cast(source)
        data = transpose = None
        if self.rowwise_usage:
            data = torch.empty_like(source, dtype=torch.uint8)
        if self.columnwise_usage:
            shape = self.get_columnwise_shape(source.shape)
            transpose = source.new_empty(shape, dtype=torch.uint8)
        scale_inv = source.new_empty(1, dtype=torch.float32)
        self._cast_into(source, data, transpose, scale_inv, None)
        return data, transpose, scale_inv

    def _cast_into(
        self,
        source: torch.Tensor,
        data: torch.Tensor | None,
        transpose: torch.Tensor | None,
        scale_inv: torch.Tensor,
        noop_flag: torch.Tensor | None,
    ) -> None:
        if not (self.with_amax_reduction or self.use_existing_amax):
            super()._cast_into(source, data, transpose, scale_inv, noop_flag)
            return
        amax = tex.compute_amax(source)
        if self.use_existing_amax and self.amax is not None:
            amax = self.amax.clone()
        if self.with_amax_reduction and torch.distributed.is_initialized():
            reduce_amax(f"{type(self).__name__}.quantize", amax, self.amax_reduction_group)
        scale = self.scale_from_amax(amax)
        tex.quantize_fp8(
            source,
            int(self.dtype),
            scale=scale,
            data=data,
            data_transpose=transpose,
            scale_inv=scale_inv,
        )

    def scale_from_amax(self, amax: torch.Tensor) -> torch.Tensor:
        """The scale, float32 [1], that an amax leads to under this quantizer's settings."""
        return tex.compute_scale_from_amax(
            amax,
            fp8_max=FP8_MAX[self.dtype],
            epsilon=self.amax_epsilon,
            power_of_two=self.force_pow_2_scales,
        )

    def create_tensor_from_data(
        self,
        data: torch.Tensor,
        fake_dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
        internal: bool = False,
        scale_inv: torch.Tensor | None = None,
    ) -> Any:
        """A tensor around existing bytes; `scale_inv` (float32 [1]) says how they were cast.

        Raises
        ------
        ValueError
            Without `scale_inv`: this quantizer holds no scale.
        """
        if scale_inv is None:
            raise ValueError(
                "Float8CurrentScalingQuantizer.create_tensor_from_data: scale_inv is None; bytes "
                "alone do not say their scale. Pass the scale_inv they were cast with."
            )
        quantizer = self.copy_for_tensor()
        quantizer.internal = internal or self.internal
        return tensor_from_data(quantizer, data, scale_inv, fake_dtype, requires_grad)


def _make_current_scaling_quantizer(
    cls: type[Float8CurrentScalingQuantizer],
    fp8_dtype: int,
    settings: tuple[bool, bool, bool, float],
    flags: tuple[bool, bool],
) -> Float8CurrentScalingQuantizer:
    rowwise, columnwise, force_pow_2_scales, amax_epsilon = settings
    quantizer = cls(
        DType(fp8_dtype),
        rowwise=rowwise,
        columnwise=columnwise,
        force_pow_2_scales=force_pow_2_scales,
        amax_epsilon=amax_epsilon,
    )
    quantizer.internal, quantizer.optimize_for_gemm = flags
    return quantizer


register_core(tex.Float8CurrentScalingQuantizerCore, Float8CurrentScalingQuantizer)
