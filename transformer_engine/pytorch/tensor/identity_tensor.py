# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The format that changes nothing: high precision behind the interface of quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .fsdp_tensor import FsdpTensor
from .quantized_tensor import PART_VIEWS, QuantizedTensor, aten
from .quantizer import Quantizer, check_quantizable, checked_attribute, is_noop
from .storage.identity_tensor_storage import IdentityTensorStorage
from .storage.quantized_storage import QuantizedTensorStorage

__all__ = ["IdentityQuantizer", "IdentityTensor", "IdentityTensorStorage"]


class IdentityQuantizer(Quantizer):
    """Keeps high-precision data.

    Parameters
    ----------
    dtype : torch.dtype, optional
        Round to this dtype; default the input's.
    rowwise, columnwise : bool, default True
        Reported by `get_usages`; the one copy serves both.
    """

    rowwise_usage: bool = checked_attribute("rowwise_usage", "Make the rowwise copy.")
    columnwise_usage: bool = checked_attribute("columnwise_usage", "Make the columnwise copy.")
    internal: bool = checked_attribute("internal", "Give storages instead of tensors.")

    def __init__(
        self, *, dtype: torch.dtype | None = None, rowwise: bool = True, columnwise: bool = True
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = dtype

    def copy(self) -> IdentityQuantizer:
        other = IdentityQuantizer(
            dtype=self.dtype, rowwise=self.rowwise_usage, columnwise=self.columnwise_usage
        )
        other.internal, other.optimize_for_gemm = self.internal, self.optimize_for_gemm
        return other

    def _value(self) -> tuple[Any, ...]:
        return (self.dtype, self.rowwise_usage, self.columnwise_usage, self.internal)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityQuantizer) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def is_requantization_safe(self) -> bool:
        return True

    def _wrap(self, hp_data: torch.Tensor, dtype: torch.dtype, requires_grad: bool = False) -> Any:
        keywords: dict[str, Any] = {
            "hp_data": hp_data,
            "quantizer": self,
            "shape": hp_data.shape,
            "dtype": dtype,
        }
        if self.internal:
            return IdentityTensorStorage(**keywords)
        return IdentityTensorStorage.tensor_class(requires_grad=requires_grad, **keywords)

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.detach()
        # A copy: a later write to the input must not change the result.
        return self._wrap(plain.to(self.dtype or plain.dtype, copy=True), tensor.dtype)

    def _make_empty(
        self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool, options: dict[str, Any]
    ) -> Any:
        hp_data = torch.empty(shape, dtype=self.dtype or dtype, **options)
        return self._wrap(hp_data, dtype, requires_grad)

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        owner = "IdentityQuantizer.update_quantized"
        if not isinstance(dst, IdentityTensorStorage) or dst._hp_data is None:
            raise TypeError(
                f"{owner}: dst is a {type(dst).__name__}; an IdentityTensor with data is required."
            )
        check_quantizable(owner, src)
        if src.shape != dst.size():
            raise ValueError(
                f"{owner}: src has shape {tuple(src.shape)}; the shape of dst, "
                f"{tuple(dst.size())}, is required."
            )
        if not is_noop(owner, noop_flag):
            plain = src.dequantize() if isinstance(src, QuantizedTensorStorage) else src.detach()
            dst._hp_data.copy_(plain)
        return dst


class IdentityTensor(FsdpTensor, IdentityTensorStorage):  # type: ignore[misc]
    """A tensor held in high precision.

    Parameters
    ----------
    shape : sequence of int
        Logical shape.
    dtype : torch.dtype
        Nominal dtype.
    hp_data : torch.Tensor
        The values.
    requires_grad : bool, default False
        As of any tensor.
    quantizer : Quantizer, optional
        Copied; what in-place updates use.
    """

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        hp_data: torch.Tensor,
        requires_grad: bool = False,
        quantizer: Quantizer | None = None,
    ) -> IdentityTensor:
        cls._check_buffer_shape("hp_data", hp_data, shape, shape)
        self = QuantizedTensor._make_wrapper(
            cls, shape, dtype, hp_data.device, requires_grad, hp_data.stride()
        )
        self._hp_data = hp_data
        self._quantizer = None if quantizer is None else quantizer.copy_for_tensor()
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self._hp_data!r})"

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        self._hp_data, self._quantizer = metadata["hp_data"], quantizer

    def _copy_bytes_from(self, src: QuantizedTensor) -> bool:
        if not isinstance(src, IdentityTensor) or self._hp_data is None or src._hp_data is None:
            return False
        self._hp_data.copy_(src._hp_data)
        return True

    def _reduce(self) -> Any:
        arguments = (type(self), tuple(self.shape), self.dtype, self._hp_data, self._quantizer)
        return (_make_identity_tensor_in_reduce_ex, arguments)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _VIEWS and isinstance(args[0], IdentityTensor):
            tensor = args[0]
            result = func(tensor._hp_data, *args[1:], **(kwargs or {}))
            many = isinstance(result, (list, tuple))
            views = [
                type(tensor).make_like(tensor, shape=hp_data.shape, hp_data=hp_data)
                for hp_data in (result if many else [result])
            ]
            return views if many else views[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


_VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.as_strided.default,
    *PART_VIEWS,
)
IdentityTensorStorage.tensor_class = IdentityTensor


def _make_identity_tensor_in_reduce_ex(
    cls: type[IdentityTensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    hp_data: torch.Tensor,
    quantizer: Quantizer | None,
) -> IdentityTensor:
    """Rebuild a pickled tensor. The name and place are part of the file format."""
    return cls(shape=shape, dtype=dtype, hp_data=hp_data, quantizer=quantizer)
