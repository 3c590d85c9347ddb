# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantization regions, availability checks and the global state's public facade.

The state itself is native (one object per thread for the region in force, one registry for
delayed scaling); this file gives it the names users know.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    Recipe,
)

from . import delayed_scaling
from .arguments import check_flag, check_group, received
from .constants import DType, TE_DType_To_Torch
from .cpp_extensions import state as tex
from .distributed import get_distributed_world_size
from .recipe_state import (
    DelayedScalingRequest,
    QuantizerRequest,
    QuantizerRole,
    RecipeState,
    fp8_dtype_of,
    fp8_max_of,
    native_recipe,
)
from .tensor.quantizer import quantizer_of_core

__all__ = [
    "DelayedScalingRequest",
    "FP8GlobalStateManager",
    "QuantizerRequest",
    "QuantizerRole",
    "RecipeState",
    "autocast",
    "check_recipe_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_align_size_for_quantization",
    "get_default_recipe",
    "get_fp4_te_dtype",
    "get_fp8_max",
    "get_fp8_te_dtype",
    "get_fp8_torch_dtype",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
]


def _available(return_reason: bool) -> bool | tuple[bool, str]:
    return (True, "") if return_reason else True


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether per-tensor FP8 runs here. It does on every CPU.

    Parameters
    ----------
    return_reason : bool, default False
        Also return why not: ``""`` when available.
    """
    return _available(return_reason)


def is_mxfp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether MXFP8 runs here; see `is_fp8_available` for the argument."""
    return _available(return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether FP8 block scaling runs here; see `is_fp8_available` for the argument."""
    return _available(return_reason)


def is_nvfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether NVFP4 runs here; see `is_fp8_available` for the argument."""
    return _available(return_reason)


@functools.cache
def get_default_recipe() -> Recipe:
    """The recipe of a region that names none.

    MXFP8 on GPUs of compute capability 10.x, current scaling on later ones, delayed scaling
    elsewhere.
    """
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    if capability >= (12, 0):
        return Float8CurrentScaling()
    return MXFP8BlockScaling() if capability >= (10, 0) else DelayedScaling()


def _check_recipe(who: str, name: str, recipe: Any) -> None:
    if not isinstance(recipe, Recipe):
        kind = "the class " + recipe.__name__ if isinstance(recipe, type) else received(recipe)
        raise TypeError(
            f"{who}: {name} is {kind}; it must be an instance of a recipe class. Pass for example "
            "transformer_engine.common.recipe.DelayedScaling()."
        )


def check_recipe_support(recipe: Recipe | None) -> None:
    """Raise if a recipe cannot run here; on the CPU every recipe can. None is always fine.

    Raises
    ------
    TypeError
        For what is no recipe.
    """
    if recipe is not None:
        _check_recipe("check_recipe_support", "recipe", recipe)


def get_fp8_te_dtype(fp8_recipe: Recipe, fprop_tensor: bool = True) -> DType:
    """The DType a recipe casts to: E5M2 only for gradients under `Format.HYBRID`."""
    _check_recipe("get_fp8_te_dtype", "fp8_recipe", fp8_recipe)
    return fp8_dtype_of(fp8_recipe, fprop_tensor)


def get_fp8_torch_dtype(fp8_recipe: Recipe, fprop_tensor: bool = True) -> torch.dtype:
    """`get_fp8_te_dtype` as a torch dtype."""
    _check_recipe("get_fp8_torch_dtype", "fp8_recipe", fp8_recipe)
    return TE_DType_To_Torch[fp8_dtype_of(fp8_recipe, fprop_tensor)]


def get_fp8_max(fp8_recipe: Recipe, fprop_tensor: bool = True) -> float:
    """Largest magnitude a recipe's format holds: 448 or 57344."""
    _check_recipe("get_fp8_max", "fp8_recipe", fp8_recipe)
    return fp8_max_of(fp8_recipe, fprop_tensor)


def get_fp4_te_dtype(fp4_recipe: Recipe) -> DType:
    """The DType of an NVFP4 recipe.

    Raises
    ------
    ValueError
        If the recipe's format is not E2M1.
    """
    fp4_format = getattr(fp4_recipe, "fp4_format", None)
    if fp4_format != Format.E2M1:
        raise ValueError(
            f"get_fp4_te_dtype: recipe has fp4_format {fp4_format}; Format.E2M1 is required."
        )
    return DType.kFloat4E2M1


def get_align_size_for_quantization(recipe: Recipe) -> int:
    """Multiple that grouped rows are padded to: 32 for MXFP8, 128 for NVFP4, a custom recipe's
    own number, else 16."""
    _check_recipe("get_align_size_for_quantization", "recipe", recipe)
    if recipe.custom():
        return int(recipe.quantization_alignment)  # type: ignore[attr-defined]
    if recipe.mxfp8():
        return 32
    return 128 if recipe.nvfp4() else 16


class autocast(tex.Region):  # public name
    """Run the modules called inside in a low-precision recipe.

    Parameters
    ----------
    enabled : bool, default True
        False turns quantization off inside an enabled region.
    calibrating : bool, default False
        With ``enabled=False``: compute in high precision but observe amaxes, so that scales for
        a quantized inference can be saved.
    recipe : Recipe, optional
        `get_default_recipe` when None.
    amax_reduction_group : torch.distributed.ProcessGroup, optional
        Ranks that share delayed-scaling amaxes; all ranks when None.

    Raises
    ------
    RuntimeError
        When one instance is entered while it is active, or the recipe cannot run here (then a
        NotImplementedError); the region in force stays as it was.
    TypeError
        An argument of another type.
    """

    # Constructor, __enter__ and __exit__ are native: regions are opened in every step.
    __slots__ = ("__weakref__",)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate: every call of the function runs in a region with these arguments."""

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            with copy.copy(self):
                return function(*args, **keywords)

        return call

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles are regions with the same arguments, not entered yet.
        arguments = (self.enabled, self.calibrating, self.recipe, self.amax_reduction_group)
        return type(self), arguments


def _check_region(
    enabled: Any, calibrating: Any, recipe: Any, amax_reduction_group: Any
) -> tuple[bool, bool]:
    """The flags of a region whose arguments are not of the usual types; an error where wrong."""
    enabled = check_flag("autocast", "enabled", enabled)
    calibrating = check_flag("autocast", "calibrating", calibrating)
    if recipe is not None:
        _check_recipe("autocast", "recipe", recipe)
    check_group("autocast", "amax_reduction_group", amax_reduction_group)
    return enabled, calibrating


tex.set_region_functions(
    check_arguments=_check_region,
    default_recipe=get_default_recipe,
    native_recipe=native_recipe,
    world_size=get_distributed_world_size,
    world=torch.distributed.distributed_c10d._world,
    recipe_type=Recipe,
)


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> autocast:
    """Deprecated spelling of `autocast`."""
    warnings.warn("fp8_autocast is deprecated; use autocast.", DeprecationWarning, stacklevel=2)
    return autocast(
        enabled=enabled,
        calibrating=calibrating,
        recipe=fp8_recipe,
        amax_reduction_group=fp8_group,
        _graph=_graph,
    )


@dataclass
class QuantizationState:
    """What modules read at construction; regions of `quantized_model_init` set it."""

    fp8_parameters: bool = False
    parameters_recipe: Recipe | None = None
    high_precision_init_val: bool = False

    @property
    def skip_fp8_weight_update_tensor(self) -> torch.Tensor | None:
        """The flag that weights read inside a graph capture: float32 [1], not 0 skips them.

        Kept natively, where modules read it.
        """
        return tex.skip_weight_update()

    @skip_fp8_weight_update_tensor.setter
    def skip_fp8_weight_update_tensor(self, flag: torch.Tensor | None) -> None:
        tex.set_skip_weight_update(flag)


@contextmanager
def quantized_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Modules built inside hold their weights in the recipe's format only.

    Parameters
    ----------
    enabled : bool, default True
    recipe : Recipe, optional
        `get_default_recipe` when None.
    preserve_high_precision_init_val : bool, default False
        Keep the initial weights in high precision on the CPU, for
        ``weight.get_high_precision_init_val()`` until ``clear_high_precision_init_val()``.

    Raises
    ------
    TypeError
        An argument of another type; the settings in force stay.
    """
    who = "quantized_model_init"
    enabled = check_flag(who, "enabled", enabled)
    if recipe is not None:
        _check_recipe(who, "recipe", recipe)
    preserve = "preserve_high_precision_init_val"
    check_flag(who, preserve, preserve_high_precision_init_val)
    state = FP8GlobalStateManager.quantization_state
    saved = (state.fp8_parameters, state.parameters_recipe, state.high_precision_init_val)
    state.fp8_parameters = enabled
    state.parameters_recipe = (recipe or get_default_recipe()) if enabled else recipe
    state.high_precision_init_val = bool(preserve_high_precision_init_val)
    try:
        yield
    finally:
        (
            state.fp8_parameters,
            state.parameters_recipe,
            state.high_precision_init_val,
        ) = saved


def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Any:
    """Deprecated spelling of `quantized_model_init`."""
    warnings.warn(
        "fp8_model_init is deprecated; use quantized_model_init.", DeprecationWarning, stacklevel=2
    )
    return quantized_model_init(enabled, recipe, preserve_high_precision_init_val)


@dataclass
class _Registry:
    """Counts the resets, each of which forgets the registered states."""

    epoch: int = 0


_registry = _Registry()
_REGISTERED = "registered_states"  # in fp8_meta: of which registry and states


def _delayed_states(fp8_meta: dict[str, Any]) -> list[Any]:
    """The native delayed-scaling states of a module, forward first."""
    states = (fp8_meta.get(key) for key in ("scaling_fwd", "scaling_bwd"))
    return [state.native for state in states if state is not None and state.native is not None]


def register_states(fp8_meta: dict[str, Any]) -> None:
    """Make a module's delayed-scaling states known to reductions over process groups."""
    states = _delayed_states(fp8_meta)
    for state in states:
        tex.register_delayed_scaling(state)
    fp8_meta[_REGISTERED] = (_registry.epoch, *(state.number for state in states))


class FP8GlobalStateManager:
    """The names under which clients read and drive the quantization state."""

    quantization_state = QuantizationState()

    @classmethod
    def reset(cls) -> None:
        """Fresh state: no region, no registered module."""
        cls.quantization_state = QuantizationState()
        _registry.epoch += 1
        tex.reset_quantization_state()

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether the region in force quantizes."""
        return bool(tex.autocast_state().enabled)

    @staticmethod
    def is_fp8_calibration() -> bool:
        """Whether the region in force observes amaxes."""
        return bool(tex.autocast_state().calibrating)

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Whether modules built now hold quantized weights."""
        return cls.quantization_state.fp8_parameters

    @classmethod
    def with_high_precision_init_val(cls) -> bool:
        """Whether modules built now keep their initial weights in high precision."""
        return cls.quantization_state.high_precision_init_val

    @staticmethod
    def fp8_graph_capturing() -> bool:
        """Whether the region in force belongs to a graph capture, or one is under way."""
        return bool(tex.autocast_state().is_graph) or tex.is_graph_capturing()

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """The recipe in force: the region's, that of `quantized_model_init`, or the default."""
        recipe = tex.autocast_state().recipe_object
        return recipe or cls.quantization_state.parameters_recipe or get_default_recipe()

    @staticmethod
    def get_fp8_group() -> Any:
        """The amax reduction group of the region in force."""
        return tex.autocast_state().group

    @staticmethod
    def is_first_fp8_module() -> bool:
        """Whether no quantized module ran yet in the region; clears the flag."""
        return bool(tex.take_first_module())

    @staticmethod
    def get_autocast_state() -> Any:
        """A copy of the region's state, for `set_autocast_state`."""
        return tex.autocast_state()

    @staticmethod
    def set_autocast_state(state: Any) -> None:
        """Put a copied state in force."""
        tex.set_autocast_state(state)

    @staticmethod
    def is_fp8_available() -> tuple[bool, str]:
        """(available, reason)"""
        return is_fp8_available(return_reason=True)  # type: ignore[return-value]

    @staticmethod
    def is_mxfp8_available() -> tuple[bool, str]:
        """(available, reason)"""
        return is_mxfp8_available(return_reason=True)  # type: ignore[return-value]

    @staticmethod
    def is_fp8_block_scaling_available() -> tuple[bool, str]:
        """(available, reason)"""
        return is_fp8_block_scaling_available(return_reason=True)  # type: ignore[return-value]

    @staticmethod
    def is_nvfp4_available() -> tuple[bool, str]:
        """(available, reason)"""
        return is_nvfp4_available(return_reason=True)  # type: ignore[return-value]

    @staticmethod
    def get_unique_autocast_key(recipe: Recipe | None = None, group: Any = None) -> str:
        """Key of the modules whose amaxes are reduced together: recipe text and group."""
        return f"{recipe!r}:{id(group)}"

    @staticmethod
    def add_fp8_tensors_to_global_buffer(fp8_meta: dict[str, Any]) -> None:
        """Tell that a module without a forward of its own, as in a graph's replay, was used.

        Inside a quantized region its delayed-scaling states, if it has any, take part in the
        region's next forward update and in the next backward update. Modules that run by
        themselves do this on their own.

        Parameters
        ----------
        fp8_meta : dict
            The module's.
        """
        states = _delayed_states(fp8_meta)
        key = (_registry.epoch, *(state.number for state in states))
        if fp8_meta.get(_REGISTERED) != key:
            register_states(fp8_meta)
        region = tex.autocast_state()
        if region.enabled and not region.is_graph:
            for state in states:
                state.use_in_region()

    @staticmethod
    def reduce_and_update_fp8_tensors(forward: bool = True) -> None:
        """Advance the delayed-scaling states of one direction that were used since last time."""
        tex.update_delayed_scaling(forward)

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """Set the flag by which replayed graphs leave quantized weights as they are.

        Weights of modules captured inside a region with ``_graph=True`` after the first call are
        quantized in every replay unless the flag is set; `make_graphed_callables` sets it by
        ``is_first_microbatch``.

        Parameters
        ----------
        skip : bool
        """
        state = cls.quantization_state
        flag = state.skip_fp8_weight_update_tensor
        if flag is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            flag = state.skip_fp8_weight_update_tensor = torch.empty(1, device=device)
        flag.fill_(skip)

    @classmethod
    def get_skip_fp8_weight_update_tensor(cls) -> torch.Tensor | None:
        """The tensor of `set_skip_fp8_weight_update_tensor`, or None."""
        return cls.quantization_state.skip_fp8_weight_update_tensor


def _make_quantized_tensor(
    copy: tuple[Any, ...], shape: list[int], dtype: torch.dtype, core: Any
) -> torch.Tensor:
    """The Python tensor of a step's quantized output or gradient: a rowwise copy."""
    quantizer = quantizer_of_core(core)
    quantizer.set_usage(rowwise=True, columnwise=False)
    tensor: torch.Tensor = quantizer.wrap_copies(copy, None, shape=torch.Size(shape), dtype=dtype)
    return tensor


tex.set_python_update(delayed_scaling.update_states)
tex.set_quantized_tensor_factory(_make_quantized_tensor)
