# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Base of all quantized tensor subclasses: what torch operations mean on quantized data.

Rules, first match wins (a format's class adds its own in front):

1. views (PART_VIEWS, view, as_strided) share the bytes and the scale; a write to one sets the
   values of the whole;
2. detach, aliases, copies to another device, empty and pinned tensors keep the class;
3. `copy_` copies bytes between tensors of one format, quantizes into a quantized destination, and
   dequantizes into a plain one;
4. an operation that writes to its arguments runs on dequantized values, then every written
   argument is quantized again (one rounding per operation): so optimizers work;
5. any other operation runs on dequantized values and gives plain tensors.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch.overrides import enable_reentrant_dispatch
from torch.utils._pytree import tree_map

from .quantizer import HIGH_PRECISION_DTYPES, NOMINAL_DTYPES, Quantizer
from .storage.quantized_storage import QuantizedTensorStorage
from .storage.write_tracking import count_write

aten = torch.ops.aten
_TensorT = TypeVar("_TensorT", bound="QuantizedTensor")

# Operations that show a part of the memory of their first argument, or another order of it; but for
# view and as_strided, which formats treat in their own ways.
PART_VIEWS = (
    *(aten.slice.Tensor, aten.select.int, aten.diagonal.default, aten.unfold.default),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int),
    *(aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default),
    *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
)


def view_bytes(func: Any, data: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A view that shares the write count: below autograd, where handlers run, views do not."""
    with enable_reentrant_dispatch():
        return func(data, *args, **kwargs)


# Custom operators that take quantized tensors as they are.
_pass_through_ops: set[Any] = set()


def register_pass_through_op(op: Any) -> None:
    """Let a custom operator (an overload of torch.ops) receive quantized tensors unconverted."""
    _pass_through_ops.add(op)


class _DequantizeFunction(torch.autograd.Function):
    """Dequantization as an identity to autograd."""

    @staticmethod
    def forward(_ctx: Any, tensor: QuantizedTensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor._dequantize_impl(dtype)

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _AliasFunction(torch.autograd.Function):
    """The same data as a new tensor, perhaps of another nominal dtype; gradients pass through."""

    @staticmethod
    def forward(ctx: Any, tensor: QuantizedTensor, dtype: torch.dtype) -> QuantizedTensor:
        ctx.dtype = tensor.dtype
        return tensor._alias(dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.dtype), None


class QuantizedTensor(torch.Tensor):
    """A tensor that holds quantized data and behaves like one of its nominal dtype.

    Subclasses derive from a `QuantizedTensorStorage` too, and are made by a quantizer.
    """

    # The storage's side of the class, which mypy cannot see from here.
    _quantizer: Quantizer | None
    get_metadata: Callable[[], dict[str, Any]]
    get_usages: Callable[[], dict[str, bool]]
    _mapped_metadata: Callable[[Callable[[torch.Tensor], torch.Tensor]], dict[str, Any]]
    _buffers: Callable[[], dict[str, torch.Tensor | None]]
    _require_quantizer: Callable[[str], Quantizer]
    _dequantize_impl: Callable[[torch.dtype], torch.Tensor]

    def _copy_bytes_from(self, src: QuantizedTensor) -> bool:
        """Take over another tensor's bytes and scales; False where that is not possible."""
        return False

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # `__new__` has done it all; without this the storage's constructor would be called.
        pass

    @staticmethod
    def _make_wrapper(
        cls: type[_TensorT],
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        requires_grad: bool = False,
        strides: Sequence[int] | None = None,
        storage_offset: int | None = None,
    ) -> _TensorT:
        """A tensor object without data of its own."""
        return torch.Tensor._make_wrapper_subclass(
            cls,
            torch.Size(shape),
            strides=strides,
            storage_offset=storage_offset,
            dtype=dtype,
            layout=torch.strided,
            device=device,
            requires_grad=requires_grad,
        )

    # Fields of a storage that a tensor has anyway.
    if TYPE_CHECKING:
        _shape: torch.Size
        _dtype: torch.dtype
    else:

        @property
        def _shape(self) -> torch.Size:
            return self.shape

        @property
        def _dtype(self) -> torch.dtype:
            return self.dtype

    # --- values ---------------------------------------------------------------------------------

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A plain tensor of the values; differentiable, the gradient passes through.

        Parameters
        ----------
        dtype : torch.dtype, optional
            Default the nominal dtype.
        """
        wanted = dtype or self.dtype
        if self.requires_grad and torch.is_grad_enabled():
            return cast(torch.Tensor, _DequantizeFunction.apply(self, wanted))
        return self._dequantize_impl(wanted)

    def quantize_(
        self: _TensorT, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None
    ) -> _TensorT:
        """Overwrite the values in place, without autograd.

        Parameters
        ----------
        tensor : torch.Tensor
            Plain or quantized (dequantized first), of the same shape.
        noop_flag : torch.Tensor, optional
            float32 [1]; not 0 leaves bytes and scales untouched.

        Raises
        ------
        RuntimeError
            If the tensor has no quantizer (for example after unpickling).
        """
        with torch.no_grad():
            self._overwrite(tensor, noop_flag=noop_flag)
        count_write(self)
        return self

    def _overwrite(self, tensor: torch.Tensor, noop_flag: torch.Tensor | None = None) -> None:
        """`quantize_` without telling autograd, which knows of operations it dispatched itself."""
        quantizer = self._require_quantizer("quantize_")
        quantizer.update_quantized(tensor, self, noop_flag=noop_flag)

    def float(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Plain FP32 tensor."""
        return self.dequantize(dtype=torch.float32)

    def bfloat16(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Plain BF16 tensor."""
        return self.dequantize(dtype=torch.bfloat16)

    def half(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Plain FP16 tensor."""
        return self.dequantize(dtype=torch.float16)

    # --- aliases and copies ---------------------------------------------------------------------

    @classmethod
    def make_like(
        cls,
        tensor: Any,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        **overrides: Any,
    ) -> Any:
        """A tensor around the same buffers.

        Parameters
        ----------
        tensor : QuantizedTensorStorage
            Of the same format.
        shape, dtype : optional
            Logical shape and nominal dtype; default those of `tensor`.
        requires_grad : bool, default False
            As of any tensor.
        **overrides
            Constructor keywords to replace, for example ``data=`` for other bytes.
        """
        keywords = tensor.get_metadata()
        keywords.update(overrides)
        keywords["shape"] = tuple(shape) if shape is not None else keywords["shape"]
        keywords["dtype"] = dtype or keywords["dtype"]
        make: Any = cls  # torch's constructor, which mypy takes this for, has other arguments
        return make(requires_grad=requires_grad, **keywords)

    def _alias(self: _TensorT, *, dtype: torch.dtype | None = None) -> _TensorT:
        """New tensor of the same class (a user's subclass too) on the same buffers."""
        alias = type(self).make_like(self, dtype=dtype)
        self._copy_marks(alias)
        return cast(_TensorT, alias)

    def _copy_marks(self, other: Any) -> None:
        """Hand on to an alias what the buffers do not say."""

    def _copied(
        self: _TensorT,
        function: Callable[[torch.Tensor], torch.Tensor],
        *,
        dtype: torch.dtype | None = None,
    ) -> _TensorT:
        """New tensor of the same class whose buffers are made from these by a function."""
        metadata = self._mapped_metadata(function)
        metadata["dtype"] = dtype or metadata["dtype"]
        return type(self)(**metadata)

    def expand_as(self, other: torch.Tensor) -> torch.Tensor:
        """For `t.expand_as(t)`, an alias whose graph leads to t; otherwise a plain tensor.

        Frameworks find a parameter's gradient accumulator through the former.
        """
        if other is self:
            return cast(torch.Tensor, _AliasFunction.apply(self, self.dtype))
        return super().expand_as(other)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """`torch.Tensor.to`; another dtype only changes the nominal one, the bytes stay."""
        wants_copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        device = self.device if device is None else torch.device(device)
        result: Any = self
        if device != self.device or wants_copy:
            result = aten._to_copy.default(self, device=device, non_blocking=non_blocking)
        if dtype is not None and dtype != result.dtype:
            result = _AliasFunction.apply(result, dtype)
        return result

    def cpu(self, *args: Any, **kwargs: Any) -> Any:
        """The same class on the CPU."""
        return self.to(torch.device("cpu"))

    def cuda(
        self, device: Any = None, non_blocking: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """The same class on a GPU."""
        target = torch.device("cuda") if device is None else torch.device(device)
        return self.to(target, non_blocking=non_blocking)

    def untyped_storage(self) -> torch.UntypedStorage:
        """An empty storage: the nominal dtype has no memory."""
        return torch.UntypedStorage(0, device=self.device)

    def apply_(self: _TensorT, callable: Callable[[Any], Any]) -> _TensorT:  # torch's name
        """`torch.Tensor.apply_`, which would look for memory: on the dequantized values."""
        if self.requires_grad:
            raise RuntimeError(
                f"{type(self).__name__}.apply_: the tensor requires grad; one that does not is "
                "required. Use detach().apply_(...)."
            )
        self.copy_(self.dequantize().apply_(callable))
        return self

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError(
            f"{type(self).__name__}.__dlpack__: there is no memory of {self.dtype} to share; a "
            "plain tensor is required. Dequantize first."
        )

    def is_pinned(self, *args: Any) -> bool:
        """Whether all buffers are in pinned memory."""
        return all(buffer is None or buffer.is_pinned() for buffer in self._buffers().values())

    @property
    def data(self) -> Any:
        """An alias outside autograd, with a version counter of its own."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self._set_data(value)

    def _set_data(self, value: torch.Tensor) -> None:
        """Adopt the buffers of a tensor of this class, or those of any other once quantized."""
        if not isinstance(value, type(self)):
            assert self._quantizer is not None, (
                f"{type(self).__name__}.data: the tensor has no quantizer to quantize a "
                f"{type(value).__name__} with"
            )
            plain = value.dequantize() if isinstance(value, QuantizedTensorStorage) else value
            fresh = self._quantizer.copy()
            fresh.internal = False
            if not isinstance(self, torch.nn.Parameter):  # which would be frozen by `double()`
                self.requires_grad_(value.requires_grad)
            value = fresh.quantize_impl(plain.detach().to(self.device))
        new: Any = value
        is_same_form = (
            self.shape == new.shape
            and self.stride() == new.stride()
            and self.dtype == new.dtype
            and self.device == new.device
        )
        if not is_same_form:
            wrapper = QuantizedTensor._make_wrapper(
                type(self), new.shape, new.dtype, new.device, strides=new.stride()
            )
            torch.Tensor.data.__set__(self, wrapper)  # type: ignore[attr-defined]
        metadata = new.get_metadata()
        quantizer = metadata.pop("quantizer")
        self._adopt(metadata, quantizer.copy_for_tensor() if quantizer is not None else None)
        new._copy_marks(self)

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        """Take over buffers and settings in place."""
        raise NotImplementedError(f"{type(self).__name__}._adopt is not implemented.")

    # --- deepcopy and pickle --------------------------------------------------------------------

    def __deepcopy__(self: _TensorT, memo: dict[int, Any]) -> _TensorT:
        if id(self) in memo:
            return cast(_TensorT, memo[id(self)])
        if not self.is_leaf:
            raise RuntimeError(
                f"{type(self).__name__}.__deepcopy__: the tensor is a result of autograd; only "
                "leaves can be deep-copied. Detach it first."
            )
        with torch.no_grad():
            twin = self._copied(torch.clone)
        if isinstance(self, torch.nn.Parameter):
            twin = cast(_TensorT, torch.nn.Parameter(twin))
        twin.requires_grad_(self.requires_grad)
        memo[id(self)] = twin  # before the attributes: methods bound to the tensor lead back here
        twin._quantizer = copy.deepcopy(self._quantizer, memo)
        for name, value in self._user_attributes().items():
            setattr(twin, name, copy.deepcopy(value, memo))
        if self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        return twin

    def _user_attributes(self) -> dict[str, Any]:
        """What others have set on the tensor object."""
        own = vars(self._alias())
        return {name: value for name, value in vars(self).items() if name not in own}

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not isinstance(self, torch.nn.Parameter):
            return self._reduce()
        # A parameter of a detached tensor, which is reduced in its turn. Methods bound to the
        # parameter are set again by whoever made them.
        attributes = self._user_attributes().items()
        state = {name: value for name, value in attributes if not callable(value)}
        rebuild = torch._utils._rebuild_parameter_with_state
        return (rebuild, (self.detach(), self.requires_grad, OrderedDict(), state))

    def _reduce(self) -> Any:
        """(module-level function, arguments) that rebuild the tensor from raw buffers."""
        raise NotImplementedError(f"{type(self).__name__}: pickling is not implemented.")

    # --- dispatch -------------------------------------------------------------------------------

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(args, kwargs)
            if result is not NotImplemented:
                return result
        if func in _pass_through_ops:
            # The operator's own kernel is below this one.
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        if func._schema.is_mutable:
            return _run_mutating(func, args, kwargs)
        plain_args, plain_kwargs = tree_map(_to_plain, (args, kwargs))
        return func(*plain_args, **plain_kwargs)


def _to_plain(value: Any) -> Any:
    return value._dequantize_impl(value.dtype) if isinstance(value, QuantizedTensor) else value


def _run_mutating(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run on dequantized values, then quantize every written argument again."""
    plain_of: dict[int, torch.Tensor] = {}  # id of a quantized argument -> its plain values
    quantized_of: dict[int, QuantizedTensor] = {}  # and back

    def to_plain(value: Any) -> Any:
        if not isinstance(value, QuantizedTensor):
            return value
        if id(value) not in plain_of:
            plain = value._dequantize_impl(value.dtype)
            plain_of[id(value)] = plain
            quantized_of[id(plain)] = value
        return plain_of[id(value)]

    written = _written_arguments(func, args, kwargs)
    if len(written) > 1:
        _check_disjoint(func, [tensor for tensor, _ in written])
    plain_args, plain_kwargs = tree_map(to_plain, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    for tensor, is_of_list in written:
        tensor._overwrite(plain_of[id(tensor)])
        if is_of_list:  # torch counts the writes of single arguments only
            count_write(tensor)
    return tree_map(lambda value: quantized_of.get(id(value), value), result)


def _written_arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[QuantizedTensor, bool]]:
    """Each quantized tensor that an operation writes, once, and whether it stands in a list."""
    found: dict[int, tuple[QuantizedTensor, bool]] = {}
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if argument.name in kwargs:
            written = kwargs[argument.name]
        else:
            written = args[position] if position < len(args) else None
        is_list = isinstance(written, (list, tuple))
        for tensor in written if is_list else (written,):
            if isinstance(tensor, QuantizedTensor):
                found.setdefault(id(tensor), (tensor, is_list))
    return list(found.values())


def _check_disjoint(func: Any, tensors: list[QuantizedTensor]) -> None:
    """Refuse to write two tensors on the same bytes in one operation.

    Each is dequantized before the operation, so the second would undo what the first wrote.
    """
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        held = (b for b in tensor._buffers().values() if b is not None and b.numel())
        for buffer in held:
            groups.setdefault(buffer.untyped_storage().data_ptr(), []).append(buffer)
            break
    for buffers in groups.values():
        if len(buffers) == 1:
            continue
        size = buffers[0].untyped_storage().nbytes() // buffers[0].element_size()
        taken = torch.zeros(size, dtype=torch.bool, device=buffers[0].device)
        for buffer in buffers:
            elements = taken.as_strided(buffer.shape, buffer.stride(), buffer.storage_offset())
            if elements.any():
                raise RuntimeError(
                    f"{func}: two written tensors share bytes, one of shape {tuple(buffer.shape)}; "
                    "those written in one operation must be disjoint. Write them one by one."
                )
            elements.fill_(True)


# --- handlers: (args, kwargs) -> result, or NotImplemented to fall to the general rules -----------


def _detach(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]._alias()


def _clone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    if memory_format not in (torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    return args[0]._copied(lambda buffer: buffer.clone(memory_format=memory_format))


def _to_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: QuantizedTensor = args[0]
    if kwargs.get("dtype") not in (None, tensor.dtype):
        return NotImplemented
    device = kwargs.get("device") or tensor.device
    non_blocking = kwargs.get("non_blocking", False)

    def move(buffer: torch.Tensor) -> torch.Tensor:
        moved = buffer.to(device=device, non_blocking=non_blocking, copy=True)
        return moved.pin_memory() if kwargs.get("pin_memory") else moved

    return tensor._copied(move)


def _pin_memory(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]._copied(lambda buffer: buffer.pin_memory())


def _copy_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dst, src = args[0], args[1]
    if not isinstance(dst, QuantizedTensor):
        dtype = dst.dtype if dst.dtype in HIGH_PRECISION_DTYPES else torch.float32
        dst.copy_(src._dequantize_impl(dtype))
        return dst
    if isinstance(src, QuantizedTensor) and dst.shape == src.shape and dst._copy_bytes_from(src):
        return dst
    # copy_ broadcasts and converts; quantizers take exactly the shape.
    plain = _to_plain(src)
    if plain.dtype not in NOMINAL_DTYPES:
        plain = plain.to(dst.dtype)
    dst._overwrite(plain if plain.shape == dst.shape else plain.expand(dst.shape))
    return dst


def _empty(tensor: QuantizedTensor, shape: Any, kwargs: dict[str, Any], keep_usages: bool) -> Any:
    quantizer = tensor._require_quantizer("empty").copy()
    if keep_usages:
        quantizer.set_usage(**tensor.get_usages())
    quantizer.internal = False
    return quantizer.make_empty(
        shape,
        dtype=kwargs.get("dtype") or tensor.dtype,
        device=kwargs.get("device") or tensor.device,
        pin_memory=bool(kwargs.get("pin_memory")),
    )


def _is_nominal(dtype: torch.dtype | None) -> bool:
    return dtype is None or dtype in NOMINAL_DTYPES


def _empty_like(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _is_nominal(kwargs.get("dtype")):
        return NotImplemented  # a plain tensor
    return _empty(args[0], args[0].shape, kwargs, keep_usages=True)


def _new_empty(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _is_nominal(kwargs.get("dtype")):
        return NotImplemented
    return _empty(args[0], args[1], kwargs, keep_usages=False)


def _is_pinned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    pinned: bool = args[0].is_pinned()
    return pinned


def _view(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError(
        f"{type(args[0]).__name__}.view: this format has no views. Dequantize first."
    )


def _record_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for buffer in args[0]._buffers().values():
        if buffer is not None:
            buffer.record_stream(args[1])


_HANDLERS: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten._pin_memory.default: _pin_memory,
    aten.copy_.default: _copy_,
    aten.empty_like.default: _empty_like,
    aten.new_empty.default: _new_empty,
    aten.is_pinned.default: _is_pinned,
    aten.view.default: _view,
    aten.record_stream.default: _record_stream,
}
