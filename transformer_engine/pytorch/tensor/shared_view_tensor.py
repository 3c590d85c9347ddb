# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of which not every view can share the buffers.

A view of the whole shares them where the format says so, and is a plain dequantized tensor
otherwise; a warning says so, because writes to it do not reach the tensor. A part is a
`TensorPart`, which holds no values of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from .fsdp_tensor import FsdpTensor, new_zeros
from .part_tensor import part_view
from .quantized_tensor import PART_VIEWS, aten, view_bytes


class _ViewFunction(torch.autograd.Function):
    """The same buffers under another shape; the gradient gets the old one back."""

    @staticmethod
    def forward(ctx: Any, tensor: SharedViewTensor, shape: torch.Size) -> SharedViewTensor:
        ctx.shape = tensor.shape
        return tensor._shared(shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].reshape(ctx.shape), None


def _call(func: Any, *args: Any) -> Any:
    return func(*args)


class SharedViewTensor(FsdpTensor):
    """A quantized tensor with views of the whole and of parts."""

    # torch operation -> (tensor, func, args, kwargs) -> result, or NotImplemented; of one format.
    _handlers: ClassVar[dict[Any, Callable[..., Any]]] = {}

    # The storage's side of the class.
    _keeps_buffers: Callable[[torch.Size], bool]
    _viewed_metadata: Callable[[Sequence[int], Callable[..., Any]], dict[str, Any]]

    def _shared(self, shape: Sequence[int], is_dispatched: bool = False) -> Any:
        """A tensor of another shape on the same buffers, perhaps from inside a handler."""
        metadata = self._viewed_metadata(shape, view_bytes if is_dispatched else _call)
        return type(self)(**metadata)

    def _fixed_axes(self) -> str:
        """The axes that a view must leave alone, in words."""
        return "last axis"

    def _shape_after(self, args: tuple[Any, ...]) -> torch.Size:
        """The shape that view(*args) gives, or torch's error."""
        # Of a tensor without memory, which knows what -1 stands for.
        return torch.empty(self.shape, device="meta").view(*args).shape

    def _viewed(self, shape: torch.Size) -> Any:
        """A view, also for autograd, that shares the buffers."""
        if self.requires_grad and torch.is_grad_enabled():
            return _ViewFunction.apply(self, shape)
        return self._shared(shape)

    def _view_or_dequantize(self, method: str, args: tuple[Any, ...]) -> Any:
        shape = self._shape_after(args)
        if self._keeps_buffers(shape):
            return self._viewed(shape)
        warnings.warn(
            f"{type(self).__name__}.{method}: shape is {tuple(shape)}, the tensor's "
            f"{tuple(self.shape)}; views share the data only with the {self._fixed_axes()} "
            "unchanged. The result is a dequantized copy: writes to it do not reach the tensor.",
            stacklevel=3,
        )
        return self.dequantize().view(shape)

    def view(self, *args: Any) -> Any:
        """`torch.Tensor.view`; a dequantized copy, with a warning, where data cannot be shared."""
        if len(args) == 1 and isinstance(args[0], torch.dtype):
            return super().view(*args)
        return self._view_or_dequantize("view", args)

    def reshape(self, *args: Any) -> Any:
        """As `view`."""
        return self._view_or_dequantize("reshape", args)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a part: the whole is dequantized, written to and quantized again."""
        if index is Ellipsis or (isinstance(index, slice) and index == slice(None)):
            self.copy_(torch.as_tensor(value, device=self.device))
            return
        values = self.dequantize()
        if values.requires_grad:
            values = values.clone()  # results of a Function are not written to
        values[index] = value
        self.copy_(values)

    # --- dispatch -------------------------------------------------------------------------------

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensor = args[0] if args else None
        if isinstance(tensor, SharedViewTensor):
            handler = type(tensor)._handlers.get(func) or _COMMON_HANDLERS.get(func)
            if handler is not None:
                result = handler(tensor, func, args, kwargs or {})
                if result is not NotImplemented:
                    return result
        return super().__torch_dispatch__(func, types, args, kwargs)


# --- torch operations: (tensor, func, args, kwargs) -> result ---


def _view_dtype(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[1] != tensor.dtype:
        raise TypeError(
            f"{type(tensor).__name__}.view: dtype is {args[1]}, but there are no bytes of "
            f"{tensor.dtype} to read so; its own dtype is required. Dequantize first."
        )
    return tensor._alias()


def raw_views(
    is_allowed: Callable[[Any, torch.Size], bool],
    error: type[Exception],
    rule: str,
    *,
    can_flatten: bool = True,
) -> dict[Any, Callable[..., Any]]:
    """Handlers of the operations that view the whole tensor, called below the `view` method.

    `can_flatten`: whether one dimension is a dequantized copy where data cannot be shared. For
    DistributedDataParallel, which flattens parameters, broadcasts that and copies it back: values
    must survive that, in both copies.
    """

    def view(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shape = func(torch.empty(tensor.shape, device="meta"), *args[1:], **kwargs).shape
        if is_allowed(tensor, shape):
            return tensor._shared(shape, is_dispatched=True)
        is_flat = len(shape) == 1
        if is_flat and can_flatten and not tensor.requires_grad:
            warnings.warn(
                f"{type(tensor).__name__}: {func} gives a dequantized copy: writes to it do not "
                "reach the tensor. (DistributedDataParallel copies what it broadcasts back.)",
                stacklevel=2,
            )
            return func(tensor._dequantize_impl(tensor.dtype), *args[1:], **kwargs)
        remedy = "; in DistributedDataParallel pass init_sync=False" if is_flat else ""
        raise error(
            f"{type(tensor).__name__}.view: shape is {tuple(shape)}, the tensor's "
            f"{tuple(tensor.shape)}; {rule}. Dequantize first{remedy}."
        )

    views = (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
    return dict.fromkeys(views, view)


_COMMON_HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.view.dtype: _view_dtype,
    aten.as_strided.default: part_view,
    **dict.fromkeys(PART_VIEWS, part_view),
    aten.new_zeros.default: new_zeros,
}
