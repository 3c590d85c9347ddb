# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keep saved activations in host memory between the forward and the backward pass.

Saved-tensor hooks hand every tensor that a layer saves to a record. A record can be in device
memory, in host memory, or both; its layer moves all of its records together:

    forward   leave layer i -> copy its records out -> after layer i+1: free their device memory
    backward  enter layer i -> fetch the records of layer i-1, so that it overlaps with layer i

Tensors that are in host memory already stay where they are: on a CPU the contexts change nothing.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from .arguments import check_flag, check_int

# Smaller tensors cost more in launches than they free.
_MIN_OFFLOAD_NUMEL = 256 * 1024

# Assigned by clients of the first version of this interface; nothing here depends on it.
CPUOffloadEnabled = False

_active_contexts = 0


def is_cpu_offload_enabled() -> bool:
    """Whether the code runs inside an enabled offload context."""
    return _active_contexts > 0


def mark_not_offload(*tensors: Any) -> None:
    """Keep tensors, and the buffers of quantized ones, in device memory.

    Parameters
    ----------
    *tensors : torch.Tensor or QuantizedTensorStorage or None
        The mark lies on the tensor object.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        buffers = tensor.get_data_tensors() if hasattr(tensor, "get_data_tensors") else ()
        for marked in (tensor, *buffers):
            if marked is not None:
                marked._is_offload_forbidden = True


def mark_activation_offload(*tensors: Any) -> None:
    """Kept for callers of the first version, which offloaded marked tensors only."""


def start_offload(*tensors: Any, offload_base_tensor: bool = False) -> None:
    """Say that tensors are complete, so that copying them out may begin before the layer ends.

    Parameters
    ----------
    *tensors : torch.Tensor or None
        Tensors that will be saved for the backward pass.
    offload_base_tensor : bool, default False
        For a view: offload the tensor it is a view of, once for all its views.
    """
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            tensor._is_offload_of_base_wanted = offload_base_tensor  # type: ignore[attr-defined]
            if tensor.is_cuda:
                tensor._offload_ready = torch.cuda.current_stream().record_event()  # type: ignore[attr-defined]


def _is_in_device_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu"


def _is_offloadable(tensor: torch.Tensor) -> bool:
    base = tensor._base if tensor._is_view() else None
    return (
        _is_in_device_memory(tensor)
        and tensor.numel() >= _MIN_OFFLOAD_NUMEL
        and not isinstance(tensor, torch.nn.Parameter)
        and not isinstance(base, torch.nn.Parameter)
        and not getattr(tensor, "_is_offload_forbidden", False)
        and not getattr(base, "_is_offload_forbidden", False)
    )


class _HostBuffers:
    """Host tensors for reuse, by shape and dtype; pinned where there is a GPU."""

    def __init__(self, retain: bool) -> None:
        self._retain = retain
        self._free: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}

    def take(self, like: torch.Tensor) -> torch.Tensor:
        free = self._free.get((like.shape, like.dtype))
        if free:
            return free.pop()
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=torch.cuda.is_available())

    def give(self, tensor: torch.Tensor) -> None:
        if self._retain and type(tensor) is torch.Tensor:
            self._free.setdefault((tensor.shape, tensor.dtype), []).append(tensor)


class _Transfers:
    """Copies between the memories, on a stream of their own where there is a GPU."""

    def __init__(self, stream: Any, retain_host_buffers: bool) -> None:
        self._stream = stream
        self._host_buffers = _HostBuffers(retain_host_buffers)

    def _side_stream(self, device: torch.device) -> Any:
        if device.type != "cuda":
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return self._stream

    def copy_out(self, tensor: torch.Tensor, ready: Any) -> tuple[torch.Tensor, Any]:
        """(host copy, event of its completion or None)."""
        stream = self._side_stream(tensor.device)
        if stream is None:
            return self._host_copy(tensor), None
        stream.wait_event(ready or torch.cuda.current_stream().record_event())
        with torch.cuda.stream(stream):
            host = self._host_copy(tensor)
            tensor.record_stream(stream)
            return host, stream.record_event()

    def _host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor:  # a quantized tensor moves its own buffers
            moved: torch.Tensor = tensor.to("cpu", copy=True)
            return moved
        return self._host_buffers.take(tensor).copy_(tensor, non_blocking=True)

    def copy_in(self, host: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
        """(device copy, event of its completion or None)."""
        stream = self._side_stream(device)
        if stream is None:
            return host.to(device, copy=True), None
        with torch.cuda.stream(stream):
            return host.to(device, non_blocking=True, copy=True), stream.record_event()

    def discard(self, host: torch.Tensor) -> None:
        self._host_buffers.give(host)


def _wait(event: Any) -> None:
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


class _Record:
    """One saved tensor."""

    def __init__(self, tensor: torch.Tensor, transfers: _Transfers) -> None:
        self._device_tensor: torch.Tensor | None = tensor
        self._device = tensor.device
        self._ready = getattr(tensor, "_offload_ready", None)
        self._host: torch.Tensor | None = None
        self._event: Any = None
        self._transfers = transfers

    def start_offload(self) -> None:
        if self._host is None and self._device_tensor is not None:
            self._host, self._event = self._transfers.copy_out(self._device_tensor, self._ready)

    def release(self) -> None:
        if self._host is not None and self._device_tensor is not None:
            _wait(self._event)
            self._device_tensor = None

    def start_reload(self) -> None:
        if self._device_tensor is None and self._host is not None:
            self._device_tensor, self._event = self._transfers.copy_in(self._host, self._device)

    def get(self) -> torch.Tensor:
        self.start_reload()
        _wait(self._event)
        self._event = None
        if self._host is not None:
            self._transfers.discard(self._host)
            self._host = None
        assert self._device_tensor is not None
        return self._device_tensor


@dataclass(frozen=True, slots=True)
class _View:
    """A saved view of a recorded tensor."""

    base: _Record
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Layer:
    """The records of one run of the context, with a link to the layer before."""

    def __init__(self, index: int, previous: _Layer | None, transfers: _Transfers) -> None:
        self.index = index
        self.previous = previous
        self._transfers = transfers
        self._records: list[_Record] = []
        self._bases: dict[int, _Record] = {}
        self.is_offloaded = False

    def pack(self, tensor: torch.Tensor) -> Any:
        if not _is_offloadable(tensor):
            return tensor
        base = tensor._base
        if base is not None and getattr(tensor, "_is_offload_of_base_wanted", False):
            if id(base) not in self._bases:
                self._bases[id(base)] = self._record(base)
            size, stride, offset = tensor.size(), tensor.stride(), int(tensor.storage_offset())
            return _View(self._bases[id(base)], size, stride, offset)
        return self._record(tensor)

    def _record(self, tensor: torch.Tensor) -> _Record:
        record = _Record(tensor, self._transfers)
        self._records.append(record)
        return record

    def close(self) -> None:
        """No more tensors will come: what identified them may be reused."""
        self._bases.clear()

    def start_offload(self) -> None:
        self.is_offloaded = True
        for record in self._records:
            record.start_offload()

    def release(self) -> None:
        for record in self._records:
            record.release()

    def start_reload(self) -> None:
        # What was saved last is needed first.
        for record in reversed(self._records):
            record.start_reload()

    def drop_links(self) -> None:
        """The backward pass is past this layer."""
        self.previous = None
        self._records.clear()


def _unpack(packed: Any) -> torch.Tensor:
    if isinstance(packed, _Record):
        return packed.get()
    if isinstance(packed, _View):
        return packed.base.get().as_strided(packed.size, packed.stride, packed.offset)
    tensor: torch.Tensor = packed
    return tensor


@dataclass(frozen=True, slots=True)
class _Plan:
    num_layers: int
    model_layers: int
    is_manual: bool


class _SyncFunction(torch.autograd.Function):
    """Identity whose two passes mark the end of a layer and the beginning of its backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, context: OffloadContext, layer: _Layer) -> Any:
        ctx.context, ctx.layer = context, layer
        context._after_layer(layer)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.context._before_backward(ctx.layer)
        return grads[0], None, None


class OffloadContext:
    """Context to run each layer in; made by `get_cpu_offload_context`, entered once per layer."""

    def __init__(self, plan: _Plan, transfers: _Transfers) -> None:
        self._plan = plan
        self._transfers = transfers
        self.layers: list[_Layer] = []  # of the current forward pass
        self.inside_context = False
        self._is_sync_due = False
        self._hooks: Any = None

    def __enter__(self) -> OffloadContext:
        global _active_contexts
        if self.inside_context:
            raise RuntimeError(
                "OffloadContext.__enter__: the context is active already; it is entered once per "
                "layer. Leave it before the next layer."
            )
        if len(self.layers) >= self._plan.model_layers:
            self.layers = []  # the next forward pass
        previous = self.layers[-1] if self.layers else None
        layer = _Layer(len(self.layers), previous, self._transfers)
        self.layers.append(layer)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(layer.pack, _unpack)
        self._hooks.__enter__()
        self.inside_context = True
        _active_contexts += 1
        return self

    def __exit__(self, *exception: Any) -> None:
        global _active_contexts
        self._hooks.__exit__(*exception)
        self._hooks = None
        self.layers[-1].close()
        self.inside_context = False
        self._is_sync_due = True
        _active_contexts -= 1

    def sync(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark the end of a layer by its output; returns the tensor to go on with.

        Raises
        ------
        RuntimeError
            Inside the context, or if no layer has run since the last call.
        ValueError
            If the tensor needs no gradient: the backward pass would not come by.
        """
        if self.inside_context:
            raise RuntimeError(
                "sync_function: it is called inside the offload context; call it on the layer's "
                "output after leaving the context."
            )
        if not self._is_sync_due:
            raise RuntimeError(
                "sync_function: no layer has run in the offload context since the last call; run "
                "one first."
            )
        if not tensor.requires_grad:
            raise ValueError(
                "sync_function: tensor has requires_grad False; the output of a layer that needs "
                "a gradient is required."
            )
        self._is_sync_due = False
        synced: torch.Tensor = _SyncFunction.apply(tensor, self, self.layers[-1])
        return synced

    def _after_layer(self, layer: _Layer) -> None:
        if self._plan.is_manual:
            return
        if layer.previous is not None and layer.previous.is_offloaded:
            layer.previous.release()
        if layer.index < self._plan.num_layers:
            layer.start_offload()

    def _before_backward(self, layer: _Layer) -> None:
        if self._plan.is_manual:
            return
        layer.start_reload()
        if layer.previous is not None:
            layer.previous.start_reload()
        layer.drop_links()


class ManualOffloadSynchronizer:
    """Moves the activations of single layers, in the order the caller chooses.

    Per layer: `start_offload_layer` after its sync call, later
    `release_activation_forward_gpu_memory`, then `start_reload_layer` before its backward pass.

    Parameters
    ----------
    context : OffloadContext
        Whose layers to move. `get_cpu_offload_context` makes both.
    """

    def __init__(self, context: OffloadContext) -> None:
        self._context = context

    def _layer(self, method: str, layer_id: int) -> _Layer:
        layers = self._context.layers
        if not 0 <= layer_id < len(layers):
            raise ValueError(
                f"ManualOffloadSynchronizer.{method}: layer_id is {layer_id}; {len(layers)} layers "
                "have run in this forward pass."
            )
        return layers[layer_id]

    def start_offload_layer(self, layer_id: int) -> None:
        """Begin to copy the layer's activations to the host."""
        self._layer("start_offload_layer", layer_id).start_offload()

    def release_activation_forward_gpu_memory(self, layer_id: int) -> None:
        """Wait for the copy and free the device memory.

        Raises
        ------
        RuntimeError
            If the copy was not started.
        """
        layer = self._layer("release_activation_forward_gpu_memory", layer_id)
        if not layer.is_offloaded:
            raise RuntimeError(
                "ManualOffloadSynchronizer.release_activation_forward_gpu_memory: layer "
                f"{layer_id} is not being offloaded. Call start_offload_layer first."
            )
        layer.release()

    def start_reload_layer(self, layer_id: int) -> None:
        """Begin to copy the layer's activations back."""
        self._layer("start_reload_layer", layer_id).start_reload()


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def get_cpu_offload_context(  # noqa: PLR0913  # frozen public signature
    enabled: bool = False,
    num_layers: int | None = 1,
    model_layers: int = 1,
    offload_activations: bool = True,
    offload_weights: bool = False,
    double_buffering: bool = False,
    manual_synchronization: bool = False,
    retain_pinned_cpu_buffers: bool = False,
    offload_stream: Any = None,
) -> tuple[Any, ...]:
    """Context and function that keep activations in host memory until they are needed.

    Run each layer inside the context, then ``x = sync_function(x)`` on its output.

    Parameters
    ----------
    enabled : bool, default False
        False gives a context and a function that do nothing.
    num_layers : int, default 1
        The first so many layers are offloaded; at most ``model_layers - 1``. Without meaning in
        manual mode.
    model_layers : int, default 1
        Layers of one forward pass.
    offload_activations : bool, default True
        Must be True.
    offload_weights, double_buffering : bool, default False
        Deprecated; ignored with a warning.
    manual_synchronization : bool, default False
        The caller moves each layer with the third result.
    retain_pinned_cpu_buffers : bool, default False
        Keep host buffers for the next step instead of freeing them.
    offload_stream : torch.cuda.Stream, optional
        For the copies, in manual mode.

    Returns
    -------
    tuple
        (context, sync_function), and a `ManualOffloadSynchronizer` in manual mode. Parameters,
        tensors under 256 Ki elements and those given to `mark_not_offload` are not moved.

    Raises
    ------
    ValueError
        For arguments that do not fit together, and negative numbers of layers.
    TypeError
        For numbers of layers that are no int, and flags that are no bool.
    """
    _check_kinds(
        num_layers,
        model_layers,
        enabled=enabled,
        manual_synchronization=manual_synchronization,
        retain_pinned_cpu_buffers=retain_pinned_cpu_buffers,
    )
    if not enabled:
        nothing = (contextlib.nullcontext(), _identity)
        if not manual_synchronization:
            return nothing
        idle = _Plan(num_layers=0, model_layers=max(model_layers, 1), is_manual=True)
        context = OffloadContext(idle, _Transfers(None, False))
        return (*nothing, ManualOffloadSynchronizer(context))
    _check_arguments(offload_activations, offload_weights, double_buffering)
    if offload_stream is not None and not manual_synchronization:
        raise ValueError(
            "get_cpu_offload_context: offload_stream is given, but manual_synchronization is "
            "False; only the manual mode takes a stream. Leave it out."
        )
    count = num_layers or 0
    if not manual_synchronization:
        _check_layers(count, model_layers)
    plan = _Plan(count, model_layers, manual_synchronization)
    context = OffloadContext(plan, _Transfers(offload_stream, retain_pinned_cpu_buffers))
    if manual_synchronization:
        return context, context.sync, ManualOffloadSynchronizer(context)
    return context, context.sync


def _check_kinds(num_layers: Any, model_layers: Any, **flags: Any) -> None:
    who = "get_cpu_offload_context"
    for name, value in flags.items():
        check_flag(who, name, value)
    if num_layers is not None:
        check_int(who, "num_layers", num_layers, minimum=0)
    check_int(who, "model_layers", model_layers, minimum=0)


def _check_arguments(activations: bool, weights: bool, double_buffering: bool) -> None:
    for name, value in (("offload_weights", weights), ("double_buffering", double_buffering)):
        if value:
            warnings.warn(
                f"get_cpu_offload_context: {name} is deprecated and has no effect.",
                DeprecationWarning,
                stacklevel=3,
            )
    if not activations:
        raise ValueError(
            "get_cpu_offload_context: offload_activations is False; nothing else can be offloaded. "
            "Pass enabled=False to offload nothing."
        )


def _check_layers(num_layers: int, model_layers: int) -> None:
    if num_layers > model_layers - 1:
        raise ValueError(
            f"get_cpu_offload_context: num_layers is {num_layers}; at most model_layers - 1 = "
            f"{model_layers - 1} is required, the last layer is needed at once."
        )
    if num_layers == model_layers - 1:
        warnings.warn(
            "get_cpu_offload_context: num_layers is model_layers - 1; the copies of the last "
            "layers have little computation to hide behind.",
            UserWarning,
            stacklevel=3,
        )
