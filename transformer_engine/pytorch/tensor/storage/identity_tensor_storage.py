# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""High-precision data behind the interface of quantized data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from ...constants import TE_DType
from .quantized_storage import QuantizedTensorStorage


class IdentityTensorStorage(QuantizedTensorStorage):
    """A plain tensor kept as it is.

    Parameters
    ----------
    hp_data : torch.Tensor
        The values.
    quantizer : Quantizer, optional
        For in-place updates.
    shape : sequence of int, optional
        Logical shape; default that of the values.
    dtype : torch.dtype, optional
        Nominal dtype; default that of the values.
    """

    _buffer_keywords: ClassVar[dict[str, str]] = {"_hp_data": "hp_data"}
    # The tensor class with this storage's data; set by the module that defines it.
    tensor_class: ClassVar[Any]

    _hp_data: torch.Tensor | None

    def __init__(
        self,
        *,
        hp_data: torch.Tensor,
        quantizer: Any = None,
        shape: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._hp_data = hp_data
        self._quantizer = quantizer
        self._shape = hp_data.shape if shape is None else torch.Size(shape)
        self._dtype = dtype or hp_data.dtype
        self._check_buffer_shape("hp_data", hp_data, self._shape, self._shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self._shape)}, dtype={self._dtype})"

    def _dequantize_impl(self, dtype: torch.dtype) -> torch.Tensor:
        if self._hp_data is None:
            raise RuntimeError(
                f"{type(self).__name__}.dequantize: the tensor holds no data; it was moved out."
            )
        return self._hp_data.to(dtype, copy=True)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._dequantize_impl(dtype or self._dtype)

    def get_usages(self) -> dict[str, bool]:
        """Both: a GEMM can read the values along either axis."""
        is_there = self._hp_data is not None
        return {"rowwise": is_there, "columnwise": is_there}

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops the values when neither copy is wanted any more; otherwise nothing to do."""
        rowwise_usage, columnwise_usage = self._checked_usages(rowwise_usage, columnwise_usage)
        if rowwise_usage is False and columnwise_usage is False:
            self._hp_data = None
        elif (rowwise_usage or columnwise_usage) and self._hp_data is None:
            raise RuntimeError(
                f"{type(self).__name__}.update_usage: a copy is demanded, but the values were "
                "dropped. Quantize again."
            )

    def _native_operand(self) -> tuple[Any, None]:
        """(rowwise, columnwise) as native steps read them: plain values serve all products."""
        data = self._hp_data
        if data is None:
            return None, None
        plain = data if data.dtype in TE_DType else data.float()
        return (plain, None, None, 0, int(TE_DType[plain.dtype]), 0), None

    def fsdp_buffer_fields(self, usages: dict[str, bool]) -> tuple[str, ...]:
        return ("_hp_data",)

    def fsdp_assign_gathered(
        self, gathered: dict[str, torch.Tensor], usages: dict[str, bool], shape: torch.Size
    ) -> dict[str, Any]:
        return {**self.get_metadata(), "hp_data": gathered["_hp_data"].view(shape)}

    def _keeps_buffers(self, shape: torch.Size) -> bool:
        return True

    def _viewed_metadata(self, shape: Sequence[int], view: Callable[..., Any]) -> dict[str, Any]:
        metadata = self.get_metadata()
        if self._hp_data is not None:
            metadata["hp_data"] = view(torch.ops.aten.view.default, self._hp_data, shape)
        return {**metadata, "shape": torch.Size(shape)}

    def get_data_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """(the values,)."""
        return (self._hp_data,)

    def get_metadata(self) -> dict[str, Any]:
        return {
            "hp_data": self._hp_data,
            "quantizer": self._quantizer,
            "shape": self._shape,
            "dtype": self._dtype,
        }
