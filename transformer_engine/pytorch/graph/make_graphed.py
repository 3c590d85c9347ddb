# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""make_graphed_callables: modules whose passes are replays of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from transformer_engine.common.recipe import Recipe

from ..arguments import check_flag, check_int, received
from .arguments import (
    OWNER,
    Options,
    Request,
    check_callable,
    check_modules,
    check_reuse,
    new_names,
    read_hooks,
    read_inputs,
    read_quantization,
    read_schedule,
)
from .capture import capture
from .device import graph_device
from .replay import GraphedForward


def make_graphed_callables(  # noqa: PLR0913 - a public signature
    modules: torch.nn.Module | tuple[torch.nn.Module, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    sample_kwargs: Any = None,
    fp8_enabled: bool | tuple[bool, ...] | None = None,
    fp8_calibrating: bool | None = None,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    fp8_weight_caching: bool | None = None,
    enabled: bool | tuple[bool, ...] | None = None,
    calibrating: bool | None = None,
    recipe: Recipe | None = None,
    amax_reduction_group: Any = None,
    cache_quantized_params: bool | None = None,
    _order: Sequence[float] | None = None,
    _num_layers_per_chunk: int | Sequence[int] | None = None,
    pool: Any = None,
    retain_graph_in_backward: bool = False,
    _reuse_graph_input_output_buffers: bool = False,
    clone_param_grads_on_return: bool = True,
    pre_warmup_hook: Callable[[], Any] | None = None,
    post_warmup_hook: Callable[[], Any] | None = None,
    capture_time_hooks: Sequence[Mapping[str, Any] | None] | None = None,
) -> Any:
    """Capture forwards and backwards of modules in CUDA graphs.

    A replay launches all kernels of a pass at once. It computes what the captured one did, from
    new inputs: shapes are fixed, and no Python code of the module runs. Results lie in memory that
    the next replay of the same graph overwrites. Graphs of one call share memory: replay them in
    the order of the capture, which is that of `modules`, then the reverse for backwards, or
    `_order`.

    Call the results inside the autocast region that the step has anyway, with the recipe of the
    capture: when it ends, delayed scaling is updated, outside of the graphs.

    Parameters
    ----------
    modules : torch.nn.Module or tuple of them
        On CUDA, without hooks, all in one mode (train or eval). In eval mode, or without grad mode,
        only forwards are captured, and results carry no gradient.
    sample_args : tuple of torch.Tensor, or tuple of such tuples
        Positional arguments of the module, or of each of the modules (with `_order`: of each slot,
        see there). Their memory becomes that of the graphs' inputs.
    num_warmup_iters : int, default 3
        Passes of each slot before the capture, with gradients of zero.
    allow_unused_input : bool, default False
        Whether inputs and parameters may have no influence on outputs.
    sample_kwargs : dict of str to torch.Tensor, or tuple of such dicts, optional
        Keyword arguments, likewise.
    fp8_enabled, fp8_calibrating, fp8_recipe, fp8_group, fp8_weight_caching : optional
        Deprecated names of the five that follow.
    enabled : bool or tuple of bool, default False
        Whether modules (each module) run quantized.
    calibrating : bool, default False
        As in `autocast`.
    recipe : Recipe, optional
        `get_default_recipe` when None.
    amax_reduction_group : torch.distributed.ProcessGroup, optional
        As in `autocast`.
    cache_quantized_params : bool, default False
        Keep quantized weights between micro-batches. Every call then needs
        ``is_first_microbatch``: True quantizes them anew.
    _order : sequence of number, optional
        For pipelines with several micro-batches under way: c is the forward of chunk c (counted
        from 1) for its next micro-batch, -c the backward of its oldest one, -(c + 0.5) the delayed
        weight gradients of that. Each layer and micro-batch is a slot with graphs of its own; the
        result is a flat tuple of forwards, first by chunk, then by micro-batch, then by layer.
    _num_layers_per_chunk : int or sequence of int, optional
        With `_order`; `modules` divided evenly when None.
    pool : optional
        Of `graph_pool_handle` or another graph: memory to share.
    retain_graph_in_backward : bool, default False
        As `retain_graph` of `torch.autograd.grad` while capturing.
    _reuse_graph_input_output_buffers : bool, default False
        With `_order`: slots share memory of inputs, outputs and gradients where the order allows.
    clone_param_grads_on_return : bool, default True
        False hands out the graphs' own memory as parameter gradients: less copying, but the next
        replay overwrites them.
    pre_warmup_hook, post_warmup_hook : callable, optional
        Called before and after the warm-up, on its stream.
    capture_time_hooks : sequence of dict or None, optional
        For each module hooks that are called around warm-up and capture, outside of the graphs:
        the keys ``forward_pre_hooks``, ``forward_hooks``, ``backward_pre_hooks`` and
        ``backward_hooks`` hold dicts of them, called as `torch.nn.Module` calls its own (with
        keyword arguments where ``forward_pre_hooks_with_kwargs`` or ``forward_hooks_with_kwargs``
        name them). They must return None.

    Returns
    -------
    torch.nn.Module, or tuple
        The modules, whose ``forward`` replays while the mode is that of the capture, and is the
        original one otherwise; with `_order` the replaying forwards. Each has ``backward_dw()``
        (delayed weight gradients) and ``reset()`` (frees the graph).

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong.
    RuntimeError
        Without CUDA; for modules that cannot be captured; from a hook that returns something.
    """
    is_single = isinstance(modules, torch.nn.Module)
    if not is_single and not isinstance(modules, (tuple, list)):
        raise TypeError(
            f"{OWNER}: modules is {received(modules)}; it must be a torch.nn.Module or a tuple of "
            "them."
        )
    all_modules = (modules,) if is_single else tuple(modules)
    check_modules(all_modules)
    settings = new_names(
        {
            "fp8_enabled": fp8_enabled,
            "fp8_calibrating": fp8_calibrating,
            "fp8_recipe": fp8_recipe,
            "fp8_group": fp8_group,
            "fp8_weight_caching": fp8_weight_caching,
            "enabled": enabled,
            "calibrating": calibrating,
            "recipe": recipe,
            "amax_reduction_group": amax_reduction_group,
            "cache_quantized_params": cache_quantized_params,
        }
    )
    schedule = read_schedule(_order, _num_layers_per_chunk, len(all_modules))
    slots = len(schedule.modules)
    if is_single and slots == 1:
        if isinstance(sample_args, Tensor):
            sample_args = (sample_args,)
        sample_args = (sample_args,)
        sample_kwargs = None if sample_kwargs is None else (sample_kwargs,)
    request = Request(
        modules=all_modules,
        inputs=read_inputs(sample_args, sample_kwargs, slots),
        schedule=schedule,
        is_ordered=_order is not None,
        quantization=read_quantization(settings, len(all_modules)),
        options=Options(
            num_warmup_iters=check_int(OWNER, "num_warmup_iters", num_warmup_iters, minimum=0),
            allow_unused_input=check_flag(OWNER, "allow_unused_input", allow_unused_input),
            pool=pool,
            retain_graph_in_backward=check_flag(
                OWNER, "retain_graph_in_backward", retain_graph_in_backward
            ),
            reuse_buffers=check_reuse(_reuse_graph_input_output_buffers, _order is not None),
            clone_param_grads=check_flag(
                OWNER, "clone_param_grads_on_return", clone_param_grads_on_return
            ),
            pre_warmup_hook=check_callable("pre_warmup_hook", pre_warmup_hook),
            post_warmup_hook=check_callable("post_warmup_hook", post_warmup_hook),
            hooks=read_hooks(capture_time_hooks, len(all_modules)),
        ),
    )
    results = _captured(request)
    return results[0] if is_single and slots == 1 else results


def _captured(request: Request) -> tuple[Any, ...]:
    device = graph_device(OWNER)
    check_devices(request, device.type)
    forwards = [GraphedForward(slot, slot.module.forward) for slot in capture(request, device)]
    if request.is_ordered:
        return tuple(forwards)
    for module, forward in zip(request.modules, forwards, strict=True):
        module.forward = forward  # type: ignore[method-assign]
        module.backward_dw = forward.backward_dw  # type: ignore[assignment]
        module.reset = forward.reset  # type: ignore[assignment]
    return request.modules


def check_devices(request: Request, device_type: str) -> None:
    """Raise where a tensor is on another device than graphs are of."""
    for inputs in request.inputs:
        for i, tensor in enumerate(inputs.tensors):
            if tensor.device.type != device_type:
                raise ValueError(
                    f"{OWNER}: tensor {i} of the sample arguments is on {tensor.device}; "
                    f"{device_type} is required. Move it there."
                )
    for module in request.modules:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.device.type != device_type:
                raise ValueError(
                    f"{OWNER}: {name} of {type(module).__name__} is on {tensor.device}; "
                    f"{device_type} is required. Move the module there."
                )


def graph_pool_handle() -> Any:
    """Memory that several calls of `make_graphed_callables` can share, as their `pool`.

    Raises
    ------
    RuntimeError
        Without CUDA.
    """
    return graph_device("graph_pool_handle").new_pool()
