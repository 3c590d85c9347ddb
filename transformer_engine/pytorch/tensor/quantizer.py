# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every quantizer offers, whatever its number format."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from transformer_engine.common.recipe import Recipe

from ..arguments import check_flag, check_group, check_int, check_tensor
from ..cpp_extensions import cast as tex
from .storage.quantized_storage import QuantizedTensorStorage

# Quantizer class of each class of native objects.
_class_of_core: dict[type, type[Quantizer]] = {}

_QuantizerT = TypeVar("_QuantizerT", bound="Quantizer")
# What torch tensors the native casts take; anything else is brought to FP32 first.
HIGH_PRECISION_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# What a quantized tensor can pass for.
NOMINAL_DTYPES = (*HIGH_PRECISION_DTYPES, torch.float64)


class _QuantizeFunction(torch.autograd.Function):
    """Quantization as an identity to autograd (straight-through estimator)."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor, quantizer: Quantizer) -> Any:
        return quantizer.quantize_impl(tensor)

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def check_quantizable(owner: str, tensor: Any) -> None:
    """Refuse what is no tensor, or one without strides."""
    if not isinstance(tensor, torch.Tensor | QuantizedTensorStorage):
        raise TypeError(
            f"{owner}: tensor is a {type(tensor).__name__}; a torch.Tensor is required. Convert it "
            "with torch.as_tensor."
        )
    if isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided:
        raise TypeError(
            f"{owner}: tensor has layout {tensor.layout}; torch.strided is required. Convert it "
            "with to_dense()."
        )


def is_noop(owner: str, noop_flag: Any) -> bool:
    """Whether a flag tells to leave the destination as it is."""
    if noop_flag is None:
        return False
    if not isinstance(noop_flag, torch.Tensor) or noop_flag.numel() != 1 or noop_flag.is_meta:
        received = type(noop_flag).__name__
        if isinstance(noop_flag, torch.Tensor):
            received = f"tensor of shape {tuple(noop_flag.shape)} on {noop_flag.device}"
        raise TypeError(
            f"{owner}: noop_flag is a {received}; a tensor of one element, 0 to write and other "
            "values to leave the destination as it is, or None is required."
        )
    return bool(noop_flag.item() != 0)


def as_quantizable(owner: str, tensor: torch.Tensor) -> torch.Tensor:
    """A plain contiguous FP32, BF16 or FP16 tensor of the same values (FP64 is rounded to FP32)."""
    check_quantizable(owner, tensor)
    if isinstance(tensor, QuantizedTensorStorage):
        tensor = tensor.dequantize()
    if tensor.dtype not in NOMINAL_DTYPES:
        raise TypeError(
            f"{owner}: tensor has dtype {tensor.dtype}; float32, bfloat16, float16 or float64 is "
            "required. Convert it first."
        )
    if tensor.dtype not in HIGH_PRECISION_DTYPES:
        tensor = tensor.float()
    return tensor.detach().contiguous()


class TensorSpec(NamedTuple):
    """Shape and dtype of a buffer."""

    shape: torch.Size
    dtype: torch.dtype


def checked_attribute(
    name: str, text: str, check: Callable[[str, str, Any], Any] = check_flag
) -> Any:
    """A property that is checked when it is assigned to."""

    def read(self: Quantizer) -> Any:
        if name not in self.__dict__:  # torch.compile looks at half-made objects
            raise AttributeError(f"{type(self).__name__}.{name} is not set.")
        return self.__dict__[name]

    def write(self: Quantizer, value: Any) -> None:
        checked = check(type(self).__name__, name, value)
        self._check_setting(name, checked)
        self.__dict__[name] = checked

    return property(read, write, doc=text)


def checked_group(owner: str, name: str, value: Any) -> Any:
    """A process group or None."""
    check_group(owner, name, value)
    return value


class Quantizer(abc.ABC):
    """Turns high-precision tensors into one quantized format.

    Parameters
    ----------
    rowwise, columnwise : bool
        Which copies to make: for GEMMs that contract along the last axis, and along the others.

    Attributes
    ----------
    rowwise_usage, columnwise_usage : bool
        As above; see `set_usage`.
    internal : bool, default False
        Return the plain storage object instead of the tensor subclass.
    optimize_for_gemm : bool, default False
        The copies may be laid out for the GEMM alone.
    """

    rowwise_usage: bool
    columnwise_usage: bool
    internal: bool
    optimize_for_gemm: bool

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False

    def _check_setting(self, name: str, value: Any) -> None:  # noqa: B027  # nothing to do here
        """Refuse a setting that does not go with the others."""

    def __repr__(self) -> str:
        usages = f"rowwise_usage={self.rowwise_usage}, columnwise_usage={self.columnwise_usage}"
        return f"{type(self).__name__}({usages}, internal={self.internal})"

    @abc.abstractmethod
    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """Quantize without autograd."""

    @abc.abstractmethod
    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        """Overwrite a quantized tensor.

        Parameters
        ----------
        src : torch.Tensor
            High-precision values, shape of `dst`.
        dst : QuantizedTensorStorage
            What to overwrite, bytes and scales.
        noop_flag : torch.Tensor, optional
            float32 [1]; not 0 leaves `dst` untouched.

        Returns
        -------
        QuantizedTensorStorage
            `dst`.
        """

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Any:
        """An uninitialised quantized tensor with the copies that the usages ask for.

        Parameters
        ----------
        shape : iterable of int
            Any, also with empty axes.
        dtype : torch.dtype, default torch.float32
            Nominal dtype: float32, bfloat16, float16 or float64.
        device : optional
            Default the quantizer's own, else torch's default device.
        requires_grad, pin_memory : bool, default False
            As of any tensor.

        Raises
        ------
        TypeError, ValueError
            For another dtype, or sizes that are no integers of at least 0.
        """
        owner = f"{type(self).__name__}.make_empty"
        if dtype not in NOMINAL_DTYPES:
            raise TypeError(
                f"{owner}: dtype is {dtype}; float32, bfloat16, float16 or float64 is required, "
                "for which the tensor passes. FP8 is the quantizer's affair."
            )
        shape = tuple(check_int(owner, "a size in shape", size, minimum=0) for size in shape)
        options = {"device": device or self._default_device(), "pin_memory": pin_memory}
        return self._make_empty(torch.Size(shape), dtype, requires_grad, options)

    def _default_device(self) -> torch.device | None:
        return None

    def _make_empty(
        self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool, options: dict[str, Any]
    ) -> Any:
        """`make_empty` of a format; `options` go to torch.empty."""
        raise NotImplementedError(f"{type(self).__name__}.make_empty is not implemented.")

    # --- buffers and settings apart, for tracers and allocators ---

    def _empty_storage(self, shape: Iterable[int], dtype: torch.dtype, device: Any) -> Any:
        """`make_empty` as a plain storage."""
        maker = self.copy()
        maker.internal = True
        return maker.make_empty(shape, dtype=dtype, device=device)

    def inner_tensor_specs(
        self, shape: Iterable[int], *, dtype: torch.dtype = torch.float32
    ) -> dict[str, TensorSpec]:
        """The buffers of a quantized tensor under the present usages, by the storage's fields.

        Parameters
        ----------
        shape : iterable of int
            Logical.
        dtype : torch.dtype, default torch.float32
            Nominal.

        Returns
        -------
        dict of str to TensorSpec
            Shape, padding included, and dtype. Fields of the halves of hybrid tensors begin with
            ``rowwise_storage.`` or ``columnwise_storage.``.
        """
        buffers = self._empty_storage(shape, dtype, "meta")._buffers()
        return {
            name: TensorSpec(buffer.shape, buffer.dtype)
            for name, buffer in buffers.items()
            if buffer is not None
        }

    def alloc_tensors(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> dict[str, torch.Tensor]:
        """Those buffers without values; padding of scales is 0.

        Parameters
        ----------
        shape, dtype
            As of `inner_tensor_specs`.
        device : optional
            As of `make_empty`.
        """
        buffers = self._empty_storage(shape, dtype, device)._buffers()
        return {name: buffer for name, buffer in buffers.items() if buffer is not None}

    def storage_metadata(
        self, shape: Iterable[int], *, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Constructor keywords of the storage or tensor that are no buffers.

        Parameters
        ----------
        shape, dtype
            As of `inner_tensor_specs`.
        """
        metadata = self._empty_storage(shape, dtype, "meta").get_metadata()
        kept = (torch.Tensor, QuantizedTensorStorage)
        metadata = {name: value for name, value in metadata.items() if not isinstance(value, kept)}
        return {**metadata, "quantizer": self}

    def create_metadata(
        self,
        tensors: Mapping[str, torch.Tensor],
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> dict[str, Any]:
        """All constructor keywords of a storage or tensor around given buffers.

        Parameters
        ----------
        tensors : mapping of str to torch.Tensor
            As `alloc_tensors` gives them; referred to.
        shape, dtype
            As of `inner_tensor_specs`.

        Raises
        ------
        ValueError
            If a buffer is missing, not known, or of another shape or dtype.
        """
        owner, sizes = f"{type(self).__name__}.create_metadata", tuple(shape)
        specs = self.inner_tensor_specs(sizes, dtype=dtype)
        if tensors.keys() != specs.keys():
            raise ValueError(
                f"{owner}: tensors are {', '.join(tensors) or 'none'}; {', '.join(specs)} are "
                "required. Make them with alloc_tensors."
            )
        for name, spec in specs.items():
            check_tensor(owner, name, tensors[name])
            if (tensors[name].shape, tensors[name].dtype) != spec:
                raise ValueError(
                    f"{owner}: {name} has shape {tuple(tensors[name].shape)} and dtype "
                    f"{tensors[name].dtype}; {tuple(spec.shape)} and {spec.dtype} are required. "
                    "Make it with alloc_tensors."
                )
        storage = self._empty_storage(sizes, dtype, "meta")
        return {**storage._metadata_around(tensors), "quantizer": self}

    @abc.abstractmethod
    def copy(self: _QuantizerT) -> _QuantizerT:
        """A quantizer of its own with the same settings; state it only refers to is shared."""

    def copy_for_tensor(self: _QuantizerT) -> _QuantizerT:
        """The copy a quantized tensor keeps: without communication, which a tensor cannot know."""
        return self.copy()

    def quantize(
        self,
        tensor: torch.Tensor,
        *,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Quantize a tensor, differentiably: the gradient passes through unchanged.

        Parameters
        ----------
        tensor : torch.Tensor
            Floating point, any shape and layout; a quantized tensor is dequantized first.
        out : QuantizedTensorStorage, optional
            Overwrite this one in place and return it.
        dtype : torch.dtype, optional
            Nominal dtype of the result; default that of `tensor`.

        Returns
        -------
        QuantizedTensor or QuantizedTensorStorage
            The latter if `internal`.
        """
        check_quantizable(f"{type(self).__name__}.quantize", tensor)
        if out is not None:
            return self.update_quantized(tensor, out)
        if isinstance(tensor, QuantizedTensorStorage) and not isinstance(tensor, torch.Tensor):
            tensor = tensor.dequantize()
        if dtype is not None and dtype != tensor.dtype:
            tensor = tensor.to(dtype)
        if tensor.requires_grad and torch.is_grad_enabled():
            return _QuantizeFunction.apply(tensor, self)
        return self.quantize_impl(tensor)

    def __call__(
        self,
        tensor: torch.Tensor,
        *,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """`quantize`."""
        return self.quantize(tensor, out=out, dtype=dtype)

    def multi_quantize(self, tensors: Iterable[torch.Tensor]) -> list[Any]:
        """Quantize each of a list of tensors."""
        return [self.quantize(tensor) for tensor in tensors]

    # --- native steps ---

    @property
    def native(self) -> Any:
        """What native steps quantize with: the object the settings live in, or a caller of this.

        A class derived from a format's is called if it has a `quantize_impl` or `calibrate` of its
        own.
        """
        core = getattr(self, "_core", None)
        if core is None:
            return tex.PythonQuantizerCore(self)
        own: Any = type(self)
        format_class: Any = _class_of_core[type(core)]
        is_format = (
            own.quantize_impl is format_class.quantize_impl
            and own.calibrate is format_class.calibrate
        )
        return core if is_format else tex.PythonQuantizerCore(self)

    @classmethod
    def from_core(cls, core: Any) -> Any:
        """A quantizer with the settings of a native object."""
        raise NotImplementedError(f"{cls.__name__}.from_core is not implemented.")

    def wrap_copies(
        self,
        rowwise: tuple[Any, ...] | None,
        columnwise: tuple[Any, ...] | None,
        *,
        shape: torch.Size,
        dtype: torch.dtype,
        requires_grad: bool = False,
    ) -> Any:
        """The tensor, or the storage if `internal`, around copies as native code gives them.

        Parameters
        ----------
        rowwise, columnwise : tuple, optional
            ``(data, scale_inv, amax, kind, dtype, flags)``; None for a copy that is not there.
        shape : torch.Size
            Logical.
        dtype : torch.dtype
            Nominal.
        requires_grad : bool, default False
            As of any tensor.
        """
        raise NotImplementedError(f"{type(self).__name__}.wrap_copies is not implemented.")

    # Not abstract: a format without observed state has nothing to do here.
    def calibrate(self, tensor: torch.Tensor) -> None:  # noqa: B027
        """Observe a tensor without quantizing it. Formats without state ignore it."""

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Choose which copies are made; None leaves a choice as it is."""
        owner = f"{type(self).__name__}.set_usage"
        usages = {"rowwise_usage": rowwise, "columnwise_usage": columnwise}
        wanted = {
            name: check_flag(owner, name.removesuffix("_usage"), value)
            for name, value in usages.items()
            if value is not None
        }
        for name, value in wanted.items():
            setattr(self, name, value)

    def get_usages(self) -> dict[str, bool]:
        """``{"rowwise": bool, "columnwise": bool}``."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def is_quantizable(self, tensor: torch.Tensor) -> bool:
        """Whether the shape of a tensor suits the format; per-tensor formats take every shape."""
        return True

    def is_requantization_safe(self) -> bool:
        """Whether quantizing the same values again gives the same result without side effects."""
        return False

    def fits_recipe(self, recipe: Recipe) -> bool:
        """Whether parameters of this format work under a recipe; any does under a custom one."""
        return recipe.custom()

    def supports_only_rowwise_all_gather(self) -> bool:
        """Whether shards are gathered by their rowwise copies, the others being derived."""
        return False

    # --- gathering shards (distributed/collectives.py) ---

    def quantize_shard(self, shard: Any, group: Any) -> Any:
        """This rank's part, quantized so that all ranks' bytes form one tensor.

        None for a format that cannot do that.
        """
        return None

    def fsdp_shard(self, shard: Any, group: Any) -> Any:
        """This rank's rows of a parameter, with what all ranks' must have in common."""
        return shard

    def fsdp_shard_of_few_rows(self, shard: Any, group: Any) -> Any:
        """As `fsdp_shard`, where some ranks of the group have no rows and so know nothing."""
        return self.fsdp_shard(shard, group)

    def join_shards(
        self, shard: Any, ranks: int, out: Any
    ) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The (still empty) whole and the (part, whole) pairs of buffers to gather into it."""
        raise NotImplementedError(f"{type(self).__name__}.join_shards is not implemented.")

    def onnx_quantize(self, tensor: torch.Tensor) -> Any:
        """Symbolic quantization for ONNX export."""
        raise NotImplementedError(
            f"{type(self).__name__}.onnx_quantize: ONNX export is not part of this version."
        )

    def onnx_dequantize(self, tensor: Any) -> Any:
        """Symbolic dequantization for ONNX export."""
        raise NotImplementedError(
            f"{type(self).__name__}.onnx_dequantize: ONNX export is not part of this version."
        )


def register_core(core: type, quantizer: type[Quantizer]) -> None:
    """Name the quantizer class whose settings live in native objects of a class."""
    _class_of_core[core] = quantizer


def quantizer_of_core(core: Any) -> Any:
    """A Python quantizer with the settings of a native object.

    Raises
    ------
    TypeError
        For an object of another kind.
    """
    cls = _class_of_core.get(type(core))
    if cls is None:
        raise TypeError(
            f"quantizer_of_core: core is a {type(core).__name__}; a native quantizer is required."
        )
    return cls.from_core(core)
