# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The arguments of make_graphed_callables, checked and in one form."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from transformer_engine.common.recipe import Recipe

from ..arguments import check_flag, check_group, received
from ..quantization import get_default_recipe
from .schedule import Kind, Schedule, ordered_schedule, plain_schedule

OWNER = "make_graphed_callables"
# Old name -> new one.
_RENAMED = {
    "fp8_enabled": "enabled",
    "fp8_calibrating": "calibrating",
    "fp8_recipe": "recipe",
    "fp8_group": "amax_reduction_group",
    "fp8_weight_caching": "cache_quantized_params",
}
HOOK_KINDS = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
_HOOK_KEYS = (*HOOK_KINDS, "forward_pre_hooks_with_kwargs", "forward_hooks_with_kwargs")


@dataclass(frozen=True, slots=True)
class Quantization:
    """The region that modules run in.

    Attributes
    ----------
    enabled : tuple of bool
        For each module.
    caches : bool
        Quantized weights are kept while is_first_microbatch is False.
    """

    enabled: tuple[bool, ...]
    calibrating: bool
    recipe: Recipe | None
    group: Any
    caches: bool


@dataclass(frozen=True, slots=True)
class SlotInputs:
    """Sample arguments of one slot: the tensors, and how they make up the call."""

    tensors: list[Tensor]
    spec: pytree.TreeSpec  # of the positional ones
    keywords: tuple[str, ...]
    keyword_specs: tuple[pytree.TreeSpec, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """How to capture."""

    num_warmup_iters: int
    allow_unused_input: bool
    pool: Any
    retain_graph_in_backward: bool
    reuse_buffers: bool
    clone_param_grads: bool
    pre_warmup_hook: Callable[[], Any] | None
    post_warmup_hook: Callable[[], Any] | None
    hooks: list[Mapping[str, Any]]  # of each module


@dataclass(frozen=True, slots=True)
class Request:
    """All of a call."""

    modules: tuple[torch.nn.Module, ...]
    inputs: list[SlotInputs]  # of each slot
    schedule: Schedule
    is_ordered: bool
    quantization: Quantization
    options: Options


def new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The five settings of the region by their new names.

    Raises
    ------
    ValueError
        Where both names of one are given.
    """
    chosen = {new: values[new] for new in _RENAMED.values()}
    for old, new in _RENAMED.items():
        if values[old] is None:
            continue
        if values[new] is not None:
            raise ValueError(
                f"{OWNER}: {old} is {received(values[old])} and {new} {received(values[new])}; "
                f"they are two names of one argument. Pass {new} alone."
            )
        warnings.warn(f"{OWNER}: {old} is deprecated; use {new}.", DeprecationWarning, stacklevel=3)
        chosen[new] = values[old]
    return chosen


def read_quantization(values: Mapping[str, Any], module_count: int) -> Quantization:
    """The region's settings from their names and values."""
    enabled = values["enabled"] if values["enabled"] is not None else False
    if isinstance(enabled, (tuple, list)):
        if not all(isinstance(flag, bool) for flag in enabled):
            raise TypeError(f"{OWNER}: enabled is {enabled!r}; it must hold bools alone.")
        if len(enabled) != module_count:
            raise ValueError(
                f"{OWNER}: enabled has {len(enabled)} flags; one for each of the {module_count} "
                "modules is required. Pass one bool for all of them."
            )
        flags = tuple(enabled)
    else:
        flags = (check_flag(OWNER, "enabled", enabled),) * module_count
    calibrating = check_flag(OWNER, "calibrating", values["calibrating"] or False)
    caches = check_flag(OWNER, "cache_quantized_params", values["cache_quantized_params"] or False)
    recipe = values["recipe"]
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(
            f"{OWNER}: recipe is {received(recipe)}; it must be an instance of a recipe class. "
            "Pass for example transformer_engine.common.recipe.DelayedScaling()."
        )
    if recipe is None and (any(flags) or calibrating):
        recipe = get_default_recipe()
    check_group(OWNER, "amax_reduction_group", values["amax_reduction_group"])
    return Quantization(flags, calibrating, recipe, values["amax_reduction_group"], caches)


def check_modules(modules: tuple[Any, ...]) -> None:
    """Raise for what cannot be captured."""
    if not modules:
        raise ValueError(f"{OWNER}: modules is empty; at least one is required.")
    for module in modules:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"{OWNER}: modules holds {received(module)}; torch.nn.Module is required. Make "
                "the function the forward of a module."
            )
    devices = {p.device.type for module in modules for p in module.parameters()} - {"meta"}
    is_cast = any(torch.is_autocast_enabled(device) for device in devices | {"cuda"})
    if is_cast and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            f"{OWNER}: torch.autocast is on and keeps casts of parameters; replays would read old "
            "ones. Open it with cache_enabled=False."
        )
    if len({module.training for module in modules}) > 1:
        modes = ["train" if module.training else "eval" for module in modules]
        raise RuntimeError(
            f"{OWNER}: modules are in the modes {modes}; one mode is required. Call .train() or "
            ".eval() on all of them."
        )
    for module in modules:
        _check_module(module)


def _check_module(module: torch.nn.Module) -> None:
    name = type(module).__name__
    if any(getattr(module, f"_{kind}") for kind in HOOK_KINDS):
        raise RuntimeError(
            f"{OWNER}: {name} has hooks; a replay would not call those of the capture. Register "
            "them afterwards, or pass capture_time_hooks for the capture alone."
        )
    for buffer_name, buffer in module.named_buffers():
        if buffer.requires_grad:
            raise RuntimeError(
                f"{OWNER}: buffer {buffer_name} of {name} requires a gradient; buffers must not. "
                "Make it a parameter, or call requires_grad_(False)."
            )


def read_inputs(
    sample_args: Sequence[Any], sample_kwargs: Sequence[Any] | None, slots: int
) -> list[SlotInputs]:
    """The sample arguments of every slot."""
    keywords = [{}] * slots if sample_kwargs is None else sample_kwargs
    for name, samples in (("sample_args", sample_args), ("sample_kwargs", keywords)):
        if len(samples) != slots:
            raise ValueError(
                f"{OWNER}: {name} has {len(samples)} items; {slots} are required, one for each "
                "module and micro-batch."
            )
    return [_slot_inputs(*pair) for pair in zip(sample_args, keywords, strict=True)]


def _slot_inputs(args: Any, keywords: Any) -> SlotInputs:
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"{OWNER}: sample_args holds {received(args)}; a tuple of tensors for each module and "
            "micro-batch is required."
        )
    if not isinstance(keywords, Mapping):
        raise TypeError(
            f"{OWNER}: sample_kwargs holds {received(keywords)}; a dict of tensors is required."
        )
    tensors, spec = pytree.tree_flatten(tuple(args))
    flat = [pytree.tree_flatten(value) for value in keywords.values()]
    for leaves, _ in flat:
        tensors += leaves
    for leaf in tensors:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"{OWNER}: sample arguments hold {received(leaf)}; only tensors are allowed. Set "
                "other values on the module."
            )
    return SlotInputs(tensors, spec, tuple(keywords), tuple(item for _, item in flat))


def read_hooks(given: Any, module_count: int) -> list[Mapping[str, Any]]:
    """The capture-time hooks of every module."""
    if given is None:
        return [{}] * module_count
    rule = (
        f"for each of the {module_count} modules None or a dict with keys of {_HOOK_KEYS} is "
        "required, each a dict of hooks by number or name"
    )
    if isinstance(given, Mapping) and module_count == 1:
        given = [given]
    if not isinstance(given, Sequence) or len(given) != module_count:
        raise ValueError(f"{OWNER}: capture_time_hooks is {received(given)}; {rule}.")
    for hooks in given:
        is_known = hooks is None or (
            isinstance(hooks, Mapping)
            and set(hooks) <= set(_HOOK_KEYS)
            and all(isinstance(value, Mapping) for value in hooks.values())
        )
        if not is_known:
            raise TypeError(f"{OWNER}: capture_time_hooks holds {received(hooks)}; {rule}.")
    return [hooks or {} for hooks in given]


def read_schedule(order: Any, layers_per_chunk: Any, module_count: int) -> Schedule:
    """The order of captures."""
    if order is None:
        if layers_per_chunk is not None:
            raise ValueError(
                f"{OWNER}: _num_layers_per_chunk is {layers_per_chunk!r} without _order, which it "
                "belongs to. Pass both or none."
            )
        return plain_schedule(module_count)
    return ordered_schedule(OWNER, order, layers_per_chunk, module_count)


def check_reuse(reuse_buffers: Any, is_ordered: bool) -> bool:
    """_reuse_graph_input_output_buffers."""
    name = "_reuse_graph_input_output_buffers"
    if check_flag(OWNER, name, reuse_buffers) and not is_ordered:
        raise ValueError(
            f"{OWNER}: {name} is True without _order; only an order of passes says when a buffer "
            "is free. Pass _order."
        )
    return bool(reuse_buffers)


def check_callable(name: str, value: Any) -> Any:
    """A hook without arguments, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{OWNER}: {name} is {received(value)}; a callable or None is required.")
    return value


def shared_inputs(inputs: list[SlotInputs], schedule: Schedule) -> list[SlotInputs]:
    """The inputs where slots take over those of slots that have finished, if they are alike."""
    shared = list(inputs)
    free: dict[Any, list[int]] = {}
    for item in schedule.passes:
        key = _signature(inputs[item.slot])
        if item.kind is Kind.FORWARD and free.get(key):
            shared[item.slot] = shared[free[key].pop(0)]
        elif item.kind is Kind.WGRAD:  # the last pass of every slot
            free.setdefault(key, []).append(item.slot)
    return shared


def _signature(inputs: SlotInputs) -> Any:
    tensors = tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in inputs.tensors)
    return tensors, str(inputs.spec), inputs.keywords, str(inputs.keyword_specs)
