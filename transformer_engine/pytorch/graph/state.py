# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""State that a capture must not change: scales and histories, random streams, attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from transformer_engine.common.recipe import Recipe

from ..arguments import received
from ..cpp_extensions import state as tex
from ..distributed import get_all_rng_states, set_all_rng_states
from ..module.base import TransformerEngineBaseModule
from ..quantization import autocast
from .device import GraphDevice

# For each module, of each submodule with quantizers: get_fp8_meta_tensors().
SavedStates = list[dict[str, list[torch.Tensor]] | None]


def set_capture_start() -> None:
    """Tell that a CUDA graph is being captured from here on."""
    tex.set_graph_capturing(True)


def set_capture_end() -> None:
    """Tell that the capture has ended."""
    tex.set_graph_capturing(False)


def is_graph_capturing() -> bool:
    """Whether a capture has started that has not ended."""
    return tex.is_graph_capturing()


def quantized_modules(modules: Iterable[Any]) -> list[TransformerEngineBaseModule]:
    """The modules with quantizers among `modules` and what they contain, each once."""
    found: dict[TransformerEngineBaseModule, None] = {}
    for module in modules:
        for part in module.modules() if isinstance(module, torch.nn.Module) else ():
            if isinstance(part, TransformerEngineBaseModule):
                found[part] = None
    return list(found)


def _check_modules(owner: str, modules: Any) -> None:
    is_sequence = isinstance(modules, Sequence) and not isinstance(modules, (str, bytes))
    if not is_sequence or not all(isinstance(m, torch.nn.Module) for m in modules):
        raise TypeError(
            f"{owner}: modules is {received(modules)}; a list or tuple of torch.nn.Module is "
            "required. Pass [module] for a single one."
        )


def save_fp8_tensors(modules: Sequence[torch.nn.Module], recipe: Recipe | None) -> SavedStates:
    """Copies of the delayed-scaling scales and histories of all modules inside `modules`.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
    recipe : Recipe or None
        That they will run under: states loaded from a checkpoint are put to use first.

    Returns
    -------
    list
        For `restore_fp8_tensors`.

    Raises
    ------
    TypeError
        For other arguments.
    """
    owner = "save_fp8_tensors"
    _check_modules(owner, modules)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(f"{owner}: recipe is {received(recipe)}; a Recipe or None is required.")
    parts = quantized_modules(modules)
    for part in parts:
        if recipe is not None and part.fp8_meta.get("loaded_buffers") is not None:
            with autocast(recipe=recipe, _graph=True):
                part.init_fp8_metadata()
    return [part.get_fp8_meta_tensors() for part in parts]


def restore_fp8_tensors(modules: Sequence[torch.nn.Module], fp8_tensors: SavedStates) -> None:
    """Put back, in place, what `save_fp8_tensors` copied; states made since then start afresh.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        The same.
    fp8_tensors : list
        What `save_fp8_tensors` returned.

    Raises
    ------
    TypeError
        For other arguments.
    ValueError
        For the states of other modules.
    """
    owner = "restore_fp8_tensors"
    _check_modules(owner, modules)
    parts = quantized_modules(modules)
    if not isinstance(fp8_tensors, list) or len(fp8_tensors) != len(parts):
        raise ValueError(
            f"{owner}: fp8_tensors is {received(fp8_tensors)}; the {len(parts)} states that "
            "save_fp8_tensors returned for these modules are required."
        )
    for part, saved in zip(parts, fp8_tensors, strict=True):
        part.reset_fp8_meta_tensors(saved)


def tracked_generators() -> list[torch.Generator]:
    """The generators of all random streams by name."""
    states = get_all_rng_states().values()
    return [state for state in states if isinstance(state, torch.Generator)]


@contextmanager
def kept_random_state(device: GraphDevice) -> Iterator[None]:
    """All random streams stand afterwards where they stood before."""
    generators = [*device.default_generators(), *tracked_generators()]
    values = [generator.get_state() for generator in generators]
    tensors = {
        name: state.clone()
        for name, state in get_all_rng_states().items()
        if isinstance(state, torch.Tensor)
    }
    try:
        yield
    finally:
        # In place: graphs hold the generators.
        for generator, value in zip(generators, values, strict=True):
            generator.set_state(value)
        if tensors:
            set_all_rng_states({**get_all_rng_states(), **tensors})


_ADDED = "grad_added_to_main_grad"  # of parameters; backwards set it


@contextmanager
def kept_parameters(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """What backwards note on parameters, and main_grads that they overwrite, stay as they are.

    A warm-up's gradients are zero, so that adding them to a main_grad changes nothing.
    """
    parameters = [parameter for module in modules for parameter in module.parameters()]
    noted = [(p, getattr(p, _ADDED)) for p in parameters if hasattr(p, _ADDED)]
    overwritten = [
        (p.main_grad, p.main_grad.clone())
        for p in parameters
        if getattr(p, "overwrite_main_grad", False) and getattr(p, "main_grad", None) is not None
    ]
    try:
        yield
    finally:
        for parameter, value in noted:
            setattr(parameter, _ADDED, value)
        for main_grad, value in overwritten:
            main_grad.copy_(value)
