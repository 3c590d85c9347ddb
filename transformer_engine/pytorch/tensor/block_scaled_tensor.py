# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tensors of all formats with one scale per block share.

A view shares the buffers where whole blocks stay together, each format says when; a write to such a
view is a write to the tensor. What cannot share is a plain dequantized tensor, and a warning says
so, because writes to it do not reach the tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from .quantized_tensor import PART_VIEWS, QuantizedTensor, aten, view_bytes
from .quantizer import Quantizer
from .storage.block_scaled_storage import BlockScaledTensorStorage
from .storage.float8_tensor_storage import count_write


class _ViewFunction(torch.autograd.Function):
    """The same buffers under another shape; the gradient gets the old one back."""

    @staticmethod
    def forward(ctx: Any, tensor: BlockScaledTensor, shape: torch.Size) -> BlockScaledTensor:
        ctx.shape = tensor.shape
        return tensor._shared(shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].reshape(ctx.shape), None


def _call(func: Any, *args: Any) -> Any:
    return func(*args)


class BlockScaledTensor(QuantizedTensor, BlockScaledTensorStorage):  # type: ignore[misc]
    """A tensor held as data with one scale per block.

    Parameters
    ----------
    shape : sequence of int
        Logical shape.
    dtype : torch.dtype
        Nominal dtype.
    requires_grad : bool, default False
        As of any tensor.
    quantizer : Quantizer, optional
        Copied; what in-place updates quantize with.
    device : torch.device, optional
        Default that of the buffers.
    **fields
        Buffers and settings: the keywords of the format's storage.
    """

    # torch operation -> (tensor, func, args, kwargs) -> result, or NotImplemented; of one format.
    _handlers: ClassVar[dict[Any, Callable[..., Any]]] = {}

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        requires_grad: bool = False,
        quantizer: Quantizer | None = None,
        device: torch.device | None = None,
        **fields: Any,
    ) -> Any:
        if device is None:
            buffers = (fields.get(keyword) for keyword in cls._buffer_keywords.values())
            held = next((buffer for buffer in buffers if buffer is not None), None)
            device = torch.get_default_device() if held is None else held.device
        self = QuantizedTensor._make_wrapper(cls, shape, dtype, device, requires_grad)
        self._init_fields(fields, None if quantizer is None else quantizer.copy_for_tensor())
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        values = "no data"
        if any(self.get_usages().values()):
            try:
                values = repr(self._dequantize_impl(self.dtype))
            except NotImplementedError:
                values = "not readable"
        settings = "".join(
            f"{setting.keyword}={value.name if hasattr(value, 'name') else value}, "
            for setting, value in (
                (setting, getattr(self, name)) for name, setting in self._settings.items()
            )
        )
        grad = f", requires_grad={self.requires_grad}" if self.requires_grad else ""
        return f"{type(self).__name__}({settings}data={values}{grad})"

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        fields = {k: v for k, v in metadata.items() if k not in ("shape", "dtype")}
        self._init_fields(fields, quantizer)

    def _copy_bytes_from(self, src: Any) -> bool:
        """Take over the copies that both hold; quantize the others from the source's values.

        False where not even one can be taken over as it is. A source without a quantizer
        (unpickled) counts as one of the same kind.
        """
        is_same_kind = (
            isinstance(src, BlockScaledTensor)
            and type(src)._settings is type(self)._settings
            and (src._quantizer is None or type(src._quantizer) is type(self._quantizer))
            and self._is_same_format(src)
        )
        if not is_same_kind:
            return False
        pairs = {c: (self._copy(c), src._copy(c)) for c in (False, True)}
        shared = [(own, other) for own, other in pairs.values() if own and other]
        missing = [c for c, (own, other) in pairs.items() if own is not None and other is None]
        if not shared:
            return False
        values = src._dequantize_impl(torch.float32) if missing else None
        for own, other in shared:
            for buffer, source in zip(own[:3], other[:3], strict=True):
                if buffer is not None and source is not None:
                    buffer.copy_(source)
                    count_write(buffer)
        if values is not None:
            part = self._part(missing)
            self._require_quantizer("copy_").update_quantized(values, part)
        return True

    def _part(self, columnwise: list[bool]) -> Any:
        """A storage of some of the copies, on the same buffers."""
        metadata = self.get_metadata()
        part = self._storage_type()(**metadata)
        part._drop_unwanted(False in columnwise, True in columnwise)
        return part

    @classmethod
    def _storage_type(cls) -> Any:
        """The class of this format's plain storages."""
        return next(
            base
            for base in cls.__mro__
            if not issubclass(base, torch.Tensor) and issubclass(base, BlockScaledTensorStorage)
        )

    def _reduce(self) -> Any:
        metadata = self.get_metadata()
        shape, dtype = tuple(metadata.pop("shape")), metadata.pop("dtype")
        quantizer = metadata.pop("quantizer")
        return (_make_block_scaled_tensor, (type(self), shape, dtype, metadata, quantizer))

    # --- views ----------------------------------------------------------------------------------

    def _shared(self, shape: Sequence[int], is_dispatched: bool = False) -> Any:
        """A tensor of another shape on the same buffers, perhaps from inside a handler."""
        view = view_bytes if is_dispatched else _call
        views = {
            self._buffer_keywords[name]: view(aten.view.default, data, shape)
            for name, data in ((name, getattr(self, name)) for name in self._logical_buffers)
            if data is not None
        }
        return type(self).make_like(self, shape=shape, **views)

    def _keeps_blocks(self, shape: torch.Size) -> bool:
        """Whether a view of a shape can share the buffers."""
        raise NotImplementedError

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
        if self._keeps_blocks(shape):
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

    # --- dispatch -------------------------------------------------------------------------------

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensor = args[0] if args else None
        if isinstance(tensor, BlockScaledTensor):
            handler = type(tensor)._handlers.get(func) or _COMMON_HANDLERS.get(func)
            if handler is not None:
                result = handler(tensor, func, args, kwargs or {})
                if result is not NotImplemented:
                    return result
        return super().__torch_dispatch__(func, types, args, kwargs)


def _make_block_scaled_tensor(
    cls: type[BlockScaledTensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    fields: dict[str, Any],
    quantizer: Quantizer | None,
) -> BlockScaledTensor:
    """Rebuild a pickled tensor. The name and place are part of the file format."""
    tensor: BlockScaledTensor = cls(shape, dtype, quantizer=quantizer, **fields)
    return tensor


# --- torch operations: (tensor, func, args, kwargs) -> result ---


def _part_view(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """slice, transpose, unbind and others: the tensor itself if that is what they show."""
    shown = func(torch.empty(tensor.shape, device="meta"), *args[1:], **kwargs)
    if isinstance(shown, torch.Tensor) and _is_all_of(tensor, shown):
        return tensor._alias()
    warnings.warn(
        f"{type(tensor).__name__}: {func} shows a part of the tensor, or another order of it, "
        "which cannot share the data. The result is a dequantized copy: writes to it do not reach "
        "the tensor. Write to the whole tensor, or call dequantize() first.",
        stacklevel=3,
    )
    return NotImplemented


def _is_all_of(tensor: Any, shown: torch.Tensor) -> bool:
    return (
        shown.shape == tensor.shape
        and shown.stride() == tensor.stride()
        and shown.storage_offset() == 0
    )


def _view_dtype(tensor: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[1] != tensor.dtype:
        raise TypeError(
            f"{type(tensor).__name__}.view: dtype is {args[1]}, but there are no bytes of "
            f"{tensor.dtype} to read so; its own dtype is required. Dequantize first."
        )
    return tensor._alias()


def shape_of_view(tensor: Any, func: Any, args: tuple[Any, ...]) -> torch.Size:
    """The shape that an operation of the view family gives."""
    shown: torch.Tensor = func(torch.empty(tensor.shape, device="meta"), *args[1:])
    return shown.shape


def view_handlers(handler: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """A handler for every operation that is a view of the whole tensor."""
    views = (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
    return dict.fromkeys(views, handler)


_COMMON_HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.view.dtype: _view_dtype,
    aten.as_strided.default: _part_view,
    **dict.fromkeys(PART_VIEWS, _part_view),
}
