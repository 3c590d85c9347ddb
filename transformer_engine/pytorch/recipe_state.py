# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a recipe to the quantizers and buffers of one module."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transformer_engine.common.recipe import DelayedScaling, Format, Recipe

from .constants import DType
from .cpp_extensions import state as tex
from .tensor import Float8CurrentScalingQuantizer, Float8Quantizer, Quantizer

# Slots per GEMM: forward [input, weight, output], backward [grad_output, grad_input].
SLOTS_PER_GEMM = {"forward": 3, "backward": 2}


@dataclass(frozen=True)
class QuantizerRole:
    """What a quantizer slot is for.

    Parameters
    ----------
    module_type : str
        Such as ``"linear"``, ``"grouped_linear"`` or ``"dpa"``.
    tensor_type : str
        Such as ``"input"``, ``"weight"``, ``"output"``, ``"grad_output"`` or ``"grad_input"``.
    name : str
        The module's name.
    """

    module_type: str = ""
    tensor_type: str = ""
    name: str = ""


@dataclass(frozen=True)
class QuantizerRequest:
    """What a custom recipe's factory may return instead of a quantizer."""


@dataclass(frozen=True)
class DelayedScalingRequest(QuantizerRequest):
    """Ask for a delayed-scaling quantizer; all requests inside one state must be equal."""

    fp8_format: Format = Format.HYBRID
    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True


def fp8_dtype_of(recipe: Recipe, fprop_tensor: bool = True) -> DType:
    """E5M2 for gradients under `Format.HYBRID`, else E4M3."""
    if getattr(recipe, "fp8_format", Format.E4M3) == Format.HYBRID and not fprop_tensor:
        return DType.kFloat8E5M2
    return DType.kFloat8E4M3


def fp8_max_of(recipe: Recipe, fprop_tensor: bool = True) -> float:
    """Largest magnitude of the format: 448 for E4M3, 57344 for E5M2."""
    return 57344.0 if fp8_dtype_of(recipe, fprop_tensor) == DType.kFloat8E5M2 else 448.0


def unsupported_reason(recipe: Recipe) -> str:
    """Why this version cannot run a recipe; empty when it can."""
    if not recipe.float8_per_tensor_scaling():
        return (
            f"{type(recipe).__name__} is not implemented in this version. "
            "Use DelayedScaling or Float8CurrentScaling."
        )
    if recipe.backward_override is not None:  # type: ignore[attr-defined]
        return (
            f"{type(recipe).__name__}: backward_override={recipe.backward_override!r} "  # type: ignore[attr-defined]
            "is not implemented in this version. Use backward_override=None."
        )
    return ""


_native_recipes: dict[tuple[type, str, tuple[Any, ...]], Any] = {}


def _quantization_params(recipe: Recipe) -> tuple[Any, ...]:
    """What may be replaced on a recipe without being a field of it."""
    names = ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad")
    return tuple(getattr(recipe, name, None) for name in names)


def native_recipe(recipe: Recipe) -> Any:
    """The native object behind a recipe; equal recipes share one, so that pointers compare.

    Raises
    ------
    NotImplementedError
        If this version cannot run the recipe.
    """
    native = recipe._native
    if native is not None:
        return native
    reason = unsupported_reason(recipe)
    if reason:
        raise NotImplementedError(f"autocast: recipe {reason}")
    key = (type(recipe), repr(recipe), _quantization_params(recipe))  # callables show their address
    native = _native_recipes.get(key)
    if native is None:
        native = _make_native_recipe(recipe)
        _native_recipes[key] = native
    recipe._native = native  # type: ignore[misc]  # shadows the class's default
    return native


def _make_native_recipe(recipe: Recipe) -> Any:
    if not isinstance(recipe, DelayedScaling):
        return tex.NativeRecipe(name=repr(recipe))
    has_callable = recipe.scaling_factor_compute_algo is not None or callable(
        recipe.amax_compute_algo
    )
    return tex.NativeRecipe(
        name=repr(recipe),
        is_delayed=True,
        margin=float(recipe.margin),
        most_recent=recipe.amax_compute_algo == "most_recent",
        has_python_update=has_callable,
        python_recipe=copy.copy(recipe),  # which the user may change later
    )


class RecipeState(ABC):
    """Buffers and quantizers of one direction of one module under one recipe.

    Parameters
    ----------
    recipe : Recipe
    mode : {"forward", "backward"}
    num_quantizers : int
        Three per GEMM forward (input, weight, output), two backward (grad_output, grad_input).
    device : torch.device, optional
        Where buffers live; the default device when None.
    roles : sequence of QuantizerRole, optional
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        if mode not in SLOTS_PER_GEMM:
            raise ValueError(f"RecipeState: mode is {mode!r}; 'forward' or 'backward' is required.")
        self.recipe = recipe
        self.mode = mode
        self.num_quantizers = num_quantizers
        self.roles = roles
        self.device = device

    @staticmethod
    def create(recipe: Recipe, **kwargs: Any) -> RecipeState:
        """The state class that fits the recipe; see the constructor for the arguments.

        Raises
        ------
        ValueError
            For an object that is no known recipe.
        NotImplementedError
            For a recipe this version cannot run.
        """
        if not isinstance(recipe, Recipe):
            raise ValueError(
                f"RecipeState.create: recipe is a {type(recipe).__name__}; a Recipe is required."
            )
        if recipe.delayed():
            return DelayedScalingRecipeState(recipe, **kwargs)
        if recipe.float8_current_scaling():
            return Float8CurrentScalingRecipeState(recipe, **kwargs)
        raise NotImplementedError(f"RecipeState.create: recipe {unsupported_reason(recipe)}")

    @property
    def is_forward(self) -> bool:
        """Whether the state serves forward tensors."""
        return self.mode == "forward"

    @abstractmethod
    def make_quantizers(self) -> list[Quantizer]:
        """One quantizer per slot."""

    def inherit_state_from(self, other: RecipeState | None) -> bool:
        """Take over (not copy) the persistent buffers of `other` where class and shape match."""
        del other
        return False

    @property
    def native(self) -> Any:
        """The native delayed-scaling state, or None for a recipe without state."""
        return None


class DelayedScalingRecipeState(RecipeState):
    """Scales and amax histories: ``scale`` [n] and ``amax_history`` [length, n], float32."""

    def __init__(self, recipe: Recipe, **kwargs: Any) -> None:
        super().__init__(recipe, **kwargs)
        length = recipe.amax_history_len  # type: ignore[attr-defined]
        self.scale = torch.ones(self.num_quantizers, dtype=torch.float32, device=self.device)
        self.amax_history = torch.zeros(
            length, self.num_quantizers, dtype=torch.float32, device=self.device
        )
        self._native: Any = None

    def make_quantizers(self) -> list[Quantizer]:
        dtype = fp8_dtype_of(self.recipe, self.is_forward)
        newest = self.amax_history[0]
        return [
            Float8Quantizer(self.scale[i : i + 1], newest[i : i + 1], dtype)
            for i in range(self.num_quantizers)
        ]

    def inherit_state_from(self, other: RecipeState | None) -> bool:
        if not isinstance(other, DelayedScalingRecipeState):
            return False
        if other.scale.shape != self.scale.shape or other.scale.dtype != self.scale.dtype:
            return False
        length = self.amax_history.shape[0]
        self.scale = other.scale
        self.amax_history = other.amax_history
        self.set_history_length(length)
        return True

    def set_history_length(self, length: int) -> None:
        """Change the history's length, keeping the most recent maxima that fit."""
        if length != self.amax_history.shape[0]:
            self.amax_history = self.resize_history(self.amax_history, length)
            self._native = None

    @staticmethod
    def resize_history(history: torch.Tensor, length: int) -> torch.Tensor:
        """A history [length, n] with the newest rows of `history`.

        Row 0 is the step in progress, the last row the newest finished step.
        """
        resized = history.new_zeros(length, history.shape[1])
        resized[0] = history[0]
        kept = min(history.shape[0], length) - 1
        if kept > 0:
            resized[-kept:] = history[-kept:]
        return resized

    @property
    def native(self) -> Any:
        if self._native is None:
            self._native = tex.DelayedScalingState(
                self.scale,
                self.amax_history,
                native_recipe(self.recipe),
                self.is_forward,
                fp8_max_of(self.recipe, self.is_forward),
            )
        return self._native

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native": None}


class Float8CurrentScalingRecipeState(RecipeState):
    """No buffers: every cast derives its scale from the tensor."""

    def make_quantizers(self) -> list[Quantizer]:
        device = self.device or torch.get_default_device()
        dtype = fp8_dtype_of(self.recipe, self.is_forward)
        return [
            Float8CurrentScalingQuantizer(
                dtype,
                device=device,
                force_pow_2_scales=params.power_2_scale,
                amax_epsilon=params.amax_epsilon,
            )
            for params in (self._params(i) for i in range(self.num_quantizers))
        ]

    def _params(self, slot: int) -> Any:
        recipe: Any = self.recipe
        if not self.is_forward:
            return recipe.fp8_quant_bwd_grad
        return recipe.fp8_quant_fwd_weight if slot % 3 == 1 else recipe.fp8_quant_fwd_inp
