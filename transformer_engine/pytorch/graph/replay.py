# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls that replay graphs: inputs are copied in, outputs and gradients handed out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..arguments import received
from ..cpp_extensions import state as tex
from ..module.base import get_dummy_wgrad
from .capture import output_of
from .slot import OUTPUT, Shared, Slot


@dataclass(slots=True)
class _Call:
    """One replayed forward, until its backward."""

    slot: Slot
    owner: str
    stream: Any
    event: Any
    leaves: tuple[bool, ...] = ()  # of the user's inputs, which are leaves with a gradient
    generation: int = 0
    owns_backward_update: bool = False


def _shared(slot: Slot, owner: str) -> Shared:
    if slot.shared is None:
        raise RuntimeError(
            f"{owner}: the graph was reset; it cannot be replayed. Capture the module again."
        )
    return slot.shared


def _copy(target: Tensor, source: Tensor) -> None:
    if target.data_ptr() != source.data_ptr() or target.stride() != source.stride():
        target.copy_(source)


class _Replay(torch.autograd.Function):
    """Forward and backward of one slot."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        slot = call.slot
        shared = _shared(slot, call.owner)
        for static, tensor in zip(slot.inputs, tensors, strict=False):
            _copy(static.detach(), tensor)
        _use_forward_states(call)
        slot.generation += 1
        call.generation = slot.generation
        assert slot.forward_graph is not None
        shared.device.replay(slot.forward_graph, call.stream, call.event)
        ctx.call = call
        outputs = tuple(tensor.detach() for tensor in slot.outputs)
        if slot.has_backward:
            pairs = zip(outputs, slot.grad_outputs, strict=True)
            ctx.mark_non_differentiable(*(t for t, grad in pairs if grad is None))
        else:
            ctx.mark_non_differentiable(*outputs)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        call = ctx.call
        slot = call.slot
        shared = _shared(slot, call.owner)
        if slot.generation != call.generation:
            raise RuntimeError(
                f"{call.owner}: backward of a forward that was replayed again since; what it left "
                "for its backward is overwritten. Run each backward first, or capture as many "
                "micro-batches as are under way with _order."
            )
        for static, gradient in zip(slot.grad_outputs, gradients, strict=True):
            if static is not None:
                _copy(static, gradient)
        assert slot.backward_graph is not None
        shared.device.replay(slot.backward_graph, call.stream, None)
        for state in slot.backward_states:
            state.mark_used()
        if call.owns_backward_update:
            tex.update_delayed_scaling(False)
        return None, *_gradients(call, shared)


def _use_forward_states(call: _Call) -> None:
    """Tell the region in force that the graph's modules run in it."""
    region = tex.autocast_state()
    if not region.enabled or region.is_graph:
        return
    slot = call.slot
    for state in slot.forward_states:
        state.use_in_region()
    if slot.backward_states and slot.has_backward:
        call.owns_backward_update = tex.take_first_module()


def _gradients(call: _Call, shared: Shared) -> list[Tensor | None]:
    """What autograd gets: clones where it might keep them beyond the next replay."""
    slot = call.slot
    count = len(slot.inputs)
    results: list[Tensor | None] = []
    for i, gradient in enumerate(slot.grad_inputs):
        if gradient is None:
            results.append(None)
        elif i < count:
            results.append(gradient.clone() if call.leaves[i] else gradient.detach())
        elif i - count in slot.placeholders:
            results.append(_placeholder(slot.parameters[i - count]))
        else:
            clones = shared.clone_param_grads
            results.append(gradient.clone() if clones else gradient.detach())
    return results


def _placeholder(parameter: Any) -> Tensor:
    parameter.grad_added_to_main_grad = True
    is_zero = bool(getattr(parameter, "zero_out_wgrad", False))
    return get_dummy_wgrad(parameter.shape, parameter.dtype, is_zero, parameter.device)


class GraphedForward:
    """Replays a slot with new inputs; called as the module's forward was.

    Parameters
    ----------
    slot : Slot
    original : callable
        The module's own forward, for the other mode (train or eval) than at the capture, and for
        calls inside another capture.
    """

    def __init__(self, slot: Slot, original: Callable[..., Any]) -> None:
        self._slot = slot
        self._original = original
        self._training = slot.module.training
        self._owner = f"{type(slot.module).__name__}.forward"

    def __call__(
        self,
        *args: Any,
        cuda_graph_stream: Any = None,
        cuda_graph_event: Any = None,
        **keywords: Any,
    ) -> Any:
        """Replay.

        Parameters
        ----------
        *args, **keywords
            As in the capture: tensors of the same shapes and dtypes.
        is_first_microbatch : bool
            Needed where quantized weights are cached: True quantizes them anew.
        cuda_graph_stream : torch.cuda.Stream, optional
            Replay there; the current stream waits for the end.
        cuda_graph_event : torch.cuda.Event, optional
            With a stream: wait for this event instead, which captured work has to record.
        """
        slot = self._slot
        # A graph cannot be launched inside a capture: there the module is captured once more.
        if slot.module.training != self._training or tex.is_graph_capturing():
            return self._original(*args, **keywords)
        shared = _shared(slot, self._owner)
        is_first = keywords.pop("is_first_microbatch", None)
        if cuda_graph_event is not None and cuda_graph_stream is None:
            raise ValueError(
                f"{self._owner}: cuda_graph_event is given without cuda_graph_stream; only for a "
                "graph on another stream there is something to wait for. Pass both."
            )
        tensors = self._tensors(args, keywords)
        if shared.skip_flag is not None:
            self._set_skip_flag(shared.skip_flag, is_first)
        call = _Call(slot, self._owner, cuda_graph_stream, cuda_graph_event)
        call.leaves = tuple(t.requires_grad and t.is_leaf for t in tensors)
        outputs = iter(_Replay.apply(call, *tensors, *slot.parameters))
        leaves = [next(outputs) if leaf is OUTPUT else leaf for leaf in slot.output_leaves]
        return output_of(slot, leaves)

    def _set_skip_flag(self, flag: Tensor, is_first: Any) -> None:
        if not isinstance(is_first, bool):
            raise TypeError(
                f"{self._owner}: is_first_microbatch is {received(is_first)}; True or False is "
                "required in every call, as the graph was captured with cache_quantized_params."
            )
        flag.fill_(not is_first)

    def _tensors(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Tensor]:
        """The call's tensors, in the order of the capture."""
        signature = self._slot.signature
        tensors, spec = pytree.tree_flatten(args)
        specs = [("positional arguments", spec, signature.spec)]
        for name, wanted in zip(signature.keywords, signature.keyword_specs, strict=True):
            if name not in keywords:
                raise TypeError(
                    f"{self._owner}: {name} is missing; the capture had it. Pass it in every call."
                )
            leaves, spec = pytree.tree_flatten(keywords[name])
            tensors += leaves
            specs.append((name, spec, wanted))
        for name, value in keywords.items():
            if name not in signature.keywords and value is not None:
                raise TypeError(
                    f"{self._owner}: {name} is {received(value)}; the capture had no such "
                    "argument, which the graph therefore cannot read. Capture with it."
                )
        for name, spec, wanted in specs:
            if spec != wanted:
                raise TypeError(
                    f"{self._owner}: {name} have the structure {spec}; {wanted} is required, as "
                    "in the capture."
                )
        for i, (tensor, static) in enumerate(zip(tensors, self._slot.inputs, strict=True)):
            self._check_tensor(i, tensor, static)
        return tensors

    def _check_tensor(self, number: int, tensor: Any, static: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{self._owner}: input {number} is {received(tensor)}; a tensor is required, as in "
                "the capture."
            )
        if tensor.shape != static.shape or tensor.dtype != static.dtype:
            raise ValueError(
                f"{self._owner}: input {number} has shape {tuple(tensor.shape)} and dtype "
                f"{tensor.dtype}; {tuple(static.shape)} and {static.dtype} are required, as in the "
                "capture. Capture one graph for each shape."
            )
        wants_gradient = tensor.requires_grad and torch.is_grad_enabled()
        if wants_gradient and self._slot.has_backward and not static.requires_grad:
            raise ValueError(
                f"{self._owner}: input {number} requires a gradient; the sample argument did not, "
                "and the graph computes none. Capture with requires_grad=True, or detach it."
            )

    def backward_dw(self) -> None:
        """Replay the weight gradients that the latest backward left (``delay_wgrad_compute``).

        As `backward_dw` of a module it assigns ``weight.grad`` and calls the registered hooks;
        nothing happens for modules that leave none.

        Raises
        ------
        RuntimeError
            After `reset`.
        """
        slot = self._slot
        owner = f"{type(slot.module).__name__}.backward_dw"
        shared = _shared(slot, owner)
        if slot.wgrad_graph is None:
            return
        shared.device.replay(slot.wgrad_graph, None, None)
        for parameter, gradient in slot.wgrads:
            parameter.grad = gradient.clone() if shared.clone_param_grads else gradient.detach()
        for module in slot.delayed_modules:
            module._trigger_wgrad_accumulation_and_reduce_hooks()

    def reset(self) -> None:
        """Free the graphs and their memory; calls are an error afterwards."""
        self._slot.reset()
