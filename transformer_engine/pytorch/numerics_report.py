# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""`numerics_report`: what a recipe does to every tensor of a model, and to every layer's result."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from transformer_engine.common.recipe import Recipe

from .arguments import check_flag, check_tensor, received
from .distributed import CudaRNGStatesTracker
from .numerics.recorder import Call, Recorder, floating_tensors
from .numerics.reference import errors_of
from .numerics.results import LayerError, NumericsReport, OperandRow
from .quantization import FP8GlobalStateManager, autocast
from .tensor import QuantizedTensor

__all__ = ["LayerError", "NumericsReport", "OperandRow", "numerics_report"]

_WHO = "numerics_report"


def _stream_restorer(tracker: Any) -> Callable[[], None]:
    """Puts the random streams of a tracker back to where they are now."""
    if not isinstance(tracker, CudaRNGStatesTracker):
        states = tracker.get_states()
        return lambda: tracker.set_states(states)
    streams = dict(tracker.states_)
    generators = {
        name: stream.get_state()
        for name, stream in streams.items()
        if isinstance(stream, torch.Generator)
    }

    def restore() -> None:
        tracker.states_.update(streams)
        for name, state in generators.items():
            tracker.states_[name].set_state(state)

    return restore


def _stream_restorers(model: torch.nn.Module) -> list[Callable[[], None]]:
    getters = [getattr(module, "get_rng_state_tracker", None) for module in model.modules()]
    trackers = [getter() for getter in getters if callable(getter)]
    unique = {id(t): t for t in trackers if hasattr(t, "get_states") and hasattr(t, "set_states")}
    return [_stream_restorer(tracker) for tracker in unique.values()]


@contextlib.contextmanager
def _untouched(model: torch.nn.Module) -> Iterator[None]:
    """Puts random generators and buffers back."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    restorers = _stream_restorers(model)
    cuda = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(cuda)):
        try:
            yield
        finally:
            for restore in restorers:
                restore()
            with torch.no_grad():
                for buffer, values in buffers:
                    if not torch.equal(buffer, values):
                        buffer.copy_(values)


def _unwrapped(module: Any) -> Any:
    """The model inside a data-parallel or compiled one: neither's machinery is to run."""
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(module, torch.nn.Module) and "_orig_mod" in module._modules:
            module = module._modules["_orig_mod"]
        else:
            return module


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Compiled functions inside the model run as they are written."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled; importing it takes seconds
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def _region(recipe: Recipe) -> Iterator[None]:
    """A region whose end advances no scaling state."""
    region = autocast(enabled=True, recipe=recipe)
    region.__enter__()
    try:
        yield
    finally:
        with torch.no_grad():
            region.__exit__(None, None, None)


def _as_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        plain = value.detach()
        return plain if isinstance(value, QuantizedTensor) else plain.clone().requires_grad_()
    return value


def _check_grad_output(output: torch.Tensor, grad_output: Any) -> torch.Tensor:
    if grad_output is None:
        # Of the loss mean(output^2) / 2.
        return output.detach() / max(1, output.numel())
    check_tensor(_WHO, "grad_output", grad_output)
    if grad_output.shape != output.shape:
        raise ValueError(
            f"{_WHO}: grad_output has shape {tuple(grad_output.shape)}; {tuple(output.shape)}, the "
            "shape of the output, is required. Pass the gradient of the first tensor returned."
        )
    return grad_output.detach().to(output.dtype)


def _first_output(outputs: Any) -> torch.Tensor:
    tensors = floating_tensors(outputs)
    if not tensors:
        raise TypeError(
            f"{_WHO}: module returned {received(outputs)}; a floating-point tensor, or a tuple, "
            "list or dict that holds one, is required. Wrap the module in one that returns it."
        )
    return tensors[0]


def _check_arguments(module: Any, recipe: Any, kwargs: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"{_WHO}: module is {received(module)}; a torch.nn.Module is required. Pass the model."
        )
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(
            f"{_WHO}: recipe is {received(recipe)}; an instance of a recipe class, or None, is "
            "required. Pass for example transformer_engine.common.recipe.DelayedScaling()."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(
            f"{_WHO}: kwargs is {received(kwargs)}; a dict of keyword arguments of the module, or "
            "None, is required."
        )


def numerics_report(
    module: torch.nn.Module,
    input: Any,
    *,
    recipe: Recipe | None = None,
    grad_output: torch.Tensor | None = None,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = True,
) -> NumericsReport:
    """Run a model once under a recipe and measure what the recipe does to it.

    For every operand of the products of `Linear`, `LayerNormLinear` and `LayerNormMLP` anywhere in
    the model: its format, amax, scales, shares of saturated and flushed values, signal-to-noise
    ratio. For every such layer: how far its output, the gradient of its input and those of its
    weights are from FP32 arithmetic on the same values.

    The model is left as it was: parameters, gradients, scaling state, buffers, random generators
    and hooks. Its own hooks run, and with them whatever they do. Under delayed scaling the scales
    are those the next step would use: 1 in a model that did not train yet.

    Parameters
    ----------
    module : torch.nn.Module
        A model with at least one of those layers, or one of them.
    input : torch.Tensor or tuple
        Its argument, or a tuple of its positional arguments. Floating-point tensors are taken as
        if they required a gradient, so that all products run.
    recipe : Recipe, optional
        That of the region around this call when None, `get_default_recipe` outside one. Regions
        that the model opens itself count for what runs inside them.
    grad_output : torch.Tensor, optional
        Gradient of the first tensor that the model returns, of its shape. That of the loss
        ``mean(output ** 2) / 2`` when None.
    kwargs : mapping, optional
        Keyword arguments of the model.
    backward : bool, default True
        Also run the backward pass; without it only fprop is reported.

    Returns
    -------
    NumericsReport
        ``print`` shows it; ``rows``, ``errors`` and ``to_dict()`` hold the numbers. Operands that a
        product reads without quantization, as in backward under ``backward_override``, have no row.

    Raises
    ------
    TypeError, ValueError
        For arguments that are not of this kind, and for a model without such layers.
    RuntimeError
        For quantized parameters of another format than the recipe's.

    Notes
    -----
    Outside ``torch.autocast`` the model runs in the dtype of its input, so call this inside the
    same ``torch.autocast`` as the training step. Every rank of a tensor-parallel model calls it.
    ``torch.utils.checkpoint`` needs ``use_reentrant=False``, as everywhere with
    ``torch.autograd.grad``.
    """
    _check_arguments(module, recipe, kwargs)
    with_backward = check_flag(_WHO, "backward", backward)
    module = _unwrapped(module)
    recorder = Recorder(module)
    if not any(layer.num_gemms for layer in recorder.modules.values()):
        raise ValueError(
            f"{_WHO}: module is a {type(module).__name__} without a Linear, LayerNormLinear or "
            "LayerNormMLP of this library; at least one is required."
        )
    region_recipe: Recipe = recipe or FP8GlobalStateManager.get_fp8_recipe()
    arguments = input if isinstance(input, tuple) else (input,)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _eager(),
        _untouched(module),
        recorder.installed(),
    ):
        leaves = [_as_leaf(value) for value in arguments]
        named = {key: _as_leaf(value) for key, value in (kwargs or {}).items()}
        with _region(region_recipe):
            output = _first_output(module(*leaves, **named))
        if with_backward:
            _run_backward(module, output, [*leaves, *named.values()], grad_output)
        errors = _compare(recorder.calls)
    rows = [row for call in recorder.calls for row in call.rows()]
    return NumericsReport(repr(region_recipe), rows, errors)


def _run_backward(
    module: torch.nn.Module, output: torch.Tensor, arguments: Sequence[Any], grad_output: Any
) -> None:
    gradient = _check_grad_output(output, grad_output)
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    leaves = [t for t in (*tensors, *module.parameters()) if t.requires_grad]
    if output.requires_grad:
        torch.autograd.grad(output, leaves, gradient, allow_unused=True)


def _compare(calls: Sequence[Call]) -> list[LayerError]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(autocast(enabled=False))
        for device in {call.outputs[0].device.type for call in calls if call.outputs}:
            stack.enter_context(torch.autocast(device, enabled=False))
        return [error for call in calls if call.outputs for error in errors_of(call)]
