# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a recipe to the quantizers and buffers of one module."""

from __future__ import annotations

import copy
import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from transformer_engine.common.environment import read_text
from transformer_engine.common.recipe import DelayedScaling, Format, Recipe

from .constants import DType
from .cpp_extensions import state as tex
from .tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
)

# Slots per GEMM: forward [input, weight, output], backward [grad_output, grad_input].
TENSOR_TYPES = {
    "forward": ("input", "weight", "output"),
    "backward": ("grad_output", "grad_input"),
}
SLOTS_PER_GEMM = {mode: len(types) for mode, types in TENSOR_TYPES.items()}


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


# Of a slot that its module does not use: a custom recipe is not asked for its quantizer.
UNUSED_SLOT = QuantizerRole(tensor_type="unused")


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


_PRODUCTS = ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad")


def _fast_accumulation(recipe: Recipe) -> tuple[bool, ...]:
    """Which products may keep partial sums in a tensor core's accumulator. Delayed scaling has no
    setting for it: its forward does.
    """
    if isinstance(recipe, DelayedScaling):
        return (True, False, False)
    products = (getattr(recipe, name, None) for name in _PRODUCTS)
    return tuple(rule is not None and not rule.use_split_accumulator for rule in products)


def _may_have_fp8_attention(recipe: Any) -> bool:
    """Whether the recipe, or the environment for all recipes, may want attention in FP8."""
    asks = getattr(recipe, "fp8_dpa", False) or getattr(recipe, "fp8_mha", False)
    return bool(asks or read_text("NVTE_DPA_FP8_RECIPE"))


_native_recipes: dict[tuple[type, str, tuple[Any, ...]], Any] = {}


def _quantization_params(recipe: Recipe) -> tuple[Any, ...]:
    """What may be replaced on a recipe without being a field of it."""
    operands = ("fwd_inp", "fwd_weight", "bwd_grad")
    names = [f"{kind}_quant_{operand}" for kind in ("fp8", "fp4") for operand in operands]
    names += _PRODUCTS
    return tuple(getattr(recipe, name, None) for name in names)


def native_recipe(recipe: Recipe) -> Any:
    """The native object behind a recipe; equal recipes share one, so that pointers compare."""
    native = recipe._native
    if native is not None:
        return native
    recipe.check_assigned_fields()
    if recipe.custom():  # a factory's text does not say what it makes
        native = _make_native_recipe(recipe)
        recipe._native = native  # type: ignore[misc]  # shadows the class's default
        return native
    # Callables show their address. The environment may give attention another recipe.
    what = (*_quantization_params(recipe), _may_have_fp8_attention(recipe))
    key = (type(recipe), repr(recipe), what)
    native = _native_recipes.get(key)
    if native is None:
        native = _make_native_recipe(recipe)
        _native_recipes[key] = native
    recipe._native = native  # type: ignore[misc]  # shadows the class's default
    return native


def _unknown_recipe(owner: str, recipe: Recipe) -> str:
    return (
        f"{owner}: recipe is a {type(recipe).__name__}; a recipe of "
        "transformer_engine.common.recipe, or a class derived from one, is required."
    )


def _make_native_recipe(recipe: Recipe) -> Any:
    if not any(getattr(recipe, family)() for family in _state_classes()):
        raise ValueError(_unknown_recipe("autocast", recipe))
    if not isinstance(recipe, DelayedScaling):
        override = recipe.backward_override  # type: ignore[attr-defined]
        return tex.NativeRecipe(
            name=repr(recipe),
            backward_override=override,
            fast_accumulation=_fast_accumulation(recipe),
            is_custom=recipe.custom(),
            has_fp8_attention=_may_have_fp8_attention(recipe),
        )
    has_callable = recipe.scaling_factor_compute_algo is not None or callable(
        recipe.amax_compute_algo
    )
    return tex.NativeRecipe(
        name=repr(recipe),
        is_delayed=True,
        margin=float(recipe.margin),
        most_recent=recipe.amax_compute_algo == "most_recent",
        reduces_amax=bool(recipe.reduce_amax),
        has_python_update=has_callable,
        python_recipe=copy.copy(recipe),  # which the user may change later
        fast_accumulation=_fast_accumulation(recipe),
        has_fp8_attention=_may_have_fp8_attention(recipe),
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
            For an object that is no known recipe, or one with fields that were assigned nonsense.
        """
        if not isinstance(recipe, Recipe):
            raise ValueError(
                f"RecipeState.create: recipe is a {type(recipe).__name__}; a Recipe is required."
            )
        recipe.check_assigned_fields()
        for family, state_class in _state_classes().items():
            if getattr(recipe, family)():
                return state_class(recipe, **kwargs)
        raise ValueError(_unknown_recipe("RecipeState.create", recipe))

    @property
    def is_forward(self) -> bool:
        """Whether the state serves forward tensors."""
        return self.mode == "forward"

    @abstractmethod
    def make_quantizers(self) -> list[Quantizer]:
        """One quantizer per slot."""

    def tensor_type(self, slot: int) -> str:
        """What a slot is for: its role's ``tensor_type``, else by its position."""
        role = None if self.roles is None else self.roles[slot]
        if role is not None and role.tensor_type:
            return role.tensor_type
        types = TENSOR_TYPES[self.mode]
        return types[slot % len(types)]

    def inherit_state_from(self, other: RecipeState | None) -> bool:
        """Take over (not copy) the persistent buffers of `other` where class and shape match."""
        del other
        return False

    @property
    def delayed(self) -> DelayedScalingRecipeState | None:
        """The buffers of delayed scaling, or None for a recipe without state."""
        return None

    @property
    def native(self) -> Any:
        """The native delayed-scaling state, or None for a recipe without state."""
        return None if self.delayed is None else self.delayed.native


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
    def delayed(self) -> DelayedScalingRecipeState:
        return self

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
            role = self.roles[0] if self.roles else None
            self._native.name = "" if role is None else role.name
        return self._native

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native": None}


class _StatelessRecipeState(RecipeState):
    """No buffers: every cast derives its scales from the tensor."""

    def make_quantizers(self) -> list[Quantizer]:
        return [self._make_quantizer(slot) for slot in range(self.num_quantizers)]

    @abstractmethod
    def _make_quantizer(self, slot: int) -> Quantizer:
        """The quantizer of one slot."""

    def _params(self, slot: int, kind: str = "fp8") -> Any:
        """The recipe's QParams for a slot."""
        if not self.is_forward:
            operand = "bwd_grad"
        else:
            operand = "fwd_weight" if self.tensor_type(slot) == "weight" else "fwd_inp"
        return getattr(self.recipe, f"{kind}_quant_{operand}")

    @property
    def _fp8_dtype(self) -> DType:
        return fp8_dtype_of(self.recipe, self.is_forward)


class Float8CurrentScalingRecipeState(_StatelessRecipeState):
    """One scale per tensor, from its own amax."""

    def _make_quantizer(self, slot: int) -> Quantizer:
        params = self._params(slot)
        return Float8CurrentScalingQuantizer(
            self._fp8_dtype,
            device=self.device or torch.get_default_device(),
            force_pow_2_scales=params.power_2_scale,
            amax_epsilon=params.amax_epsilon,
        )


class Float8BlockScalingRecipeState(_StatelessRecipeState):
    """One FP32 scale per 128 elements or 128x128 tile."""

    def _make_quantizer(self, slot: int) -> Quantizer:
        recipe: Any = self.recipe
        params = self._params(slot)
        if not self.is_forward:
            dim = recipe.grad_block_scaling_dim
        elif self.tensor_type(slot) == "weight":
            dim = recipe.w_block_scaling_dim
        else:
            dim = recipe.x_block_scaling_dim
        return Float8BlockQuantizer(
            self._fp8_dtype,
            rowwise=True,
            columnwise=True,
            amax_epsilon=params.amax_epsilon,
            force_pow_2_scales=params.power_2_scale,
            block_scaling_dim=dim,
        )


class MXFP8BlockScalingRecipeState(_StatelessRecipeState):
    """One E8M0 scale per 32 elements; 32x32 tiles for weights of linear layers if asked for."""

    def _make_quantizer(self, slot: int) -> Quantizer:
        role = None if self.roles is None else self.roles[slot]
        is_linear = role is not None and role.module_type in ("linear", "grouped_linear")
        is_tiled = (
            self.recipe.enable_2d_quantization  # type: ignore[attr-defined]
            and is_linear
            and self.tensor_type(slot) == "weight"
        )
        return MXFP8Quantizer(self._fp8_dtype, with_2d_quantization=is_tiled)


class NVFP4BlockScalingRecipeState(_StatelessRecipeState):
    """E2M1 with an E4M3 scale per 16 elements under an FP32 scale per tensor."""

    def _make_quantizer(self, slot: int) -> Quantizer:
        recipe: Any = self.recipe
        params = self._params(slot, "fp4")
        is_weight = self.tensor_type(slot) == "weight"
        # Of the four-over-six options, gradients take part in none.
        sets = {"all", "weights" if is_weight else "activations"} if self.is_forward else set()
        return NVFP4Quantizer(
            DType.kFloat4E2M1,
            with_rht=params.random_hadamard_transform,
            with_post_rht_amax=params.random_hadamard_transform,
            with_2d_quantization=params.fp4_2d_quantization,
            stochastic_rounding=params.stochastic_rounding,
            row_scaled_nvfp4=recipe.row_scaled_activation and self.is_forward and not is_weight,
            nvfp4_use_4over6=recipe.nvfp4_4over6 in sets,
            nvfp4_e4m3_max=256 if self._is_bounded_by_256(sets) else 448,
            nvfp4_4over6_err_mode=recipe.nvfp4_4over6_err_mode,
        )

    def _is_bounded_by_256(self, sets: set[str]) -> bool:
        recipe: Any = self.recipe
        return recipe.nvfp4_4over6 in sets and recipe.nvfp4_4over6_e4m3_use_256 in sets


class CustomRecipeState(RecipeState):
    """Quantizers from the recipe's factory; those that ask for delayed scaling share one state."""

    def __init__(self, recipe: Recipe, **kwargs: Any) -> None:
        super().__init__(recipe, **kwargs)
        self._delayed: DelayedScalingRecipeState | None = None
        self._inherited: DelayedScalingRecipeState | None = None

    def make_quantizers(self) -> list[Quantizer]:
        if self.roles is None:
            warnings.warn(
                "CustomRecipe: the module gives no roles; the factory is called with None for "
                "every tensor.",
                UserWarning,
                stacklevel=2,
            )
        made = [self._ask_factory(slot) for slot in range(self.num_quantizers)]
        requests = [item for item in made if isinstance(item, DelayedScalingRequest)]
        if not requests:
            self._delayed = None
            return made
        delayed = self._delayed_quantizers(requests)
        return [
            delayed[slot] if isinstance(item, DelayedScalingRequest) else item
            for slot, item in enumerate(made)
        ]

    def _ask_factory(self, slot: int) -> Any:
        role = None if self.roles is None else self.roles[slot]
        if role == UNUSED_SLOT:
            return IdentityQuantizer()
        made = self.recipe.qfactory(role)  # type: ignore[attr-defined]
        if made is None:
            raise ValueError(
                f"CustomRecipe: qfactory returned None for {role}; a Quantizer or a "
                "QuantizerRequest is required. Return IdentityQuantizer() for high precision."
            )
        if not isinstance(made, (Quantizer, DelayedScalingRequest)):
            raise TypeError(
                f"CustomRecipe: qfactory returned a {type(made).__name__} for {role}; a Quantizer "
                "or a DelayedScalingRequest is required."
            )
        return made

    def _delayed_quantizers(self, requests: list[DelayedScalingRequest]) -> list[Quantizer]:
        if any(request != requests[0] for request in requests):
            raise ValueError(
                f"CustomRecipe: qfactory asked for delayed scaling with different settings, "
                f"{requests[0]} among others; all requests of one module and direction must be "
                "equal."
            )
        if self._delayed is not None:  # made before; its length may have been adjusted since
            return self._delayed.make_quantizers()
        state = DelayedScalingRecipeState(
            DelayedScaling(**{f.name: getattr(requests[0], f.name) for f in fields(requests[0])}),
            mode=self.mode,
            num_quantizers=self.num_quantizers,
            device=self.device,
            roles=self.roles,
        )
        state.inherit_state_from(self._inherited)
        self._delayed = state
        return state.make_quantizers()

    def inherit_state_from(self, other: RecipeState | None) -> bool:
        if not isinstance(other, CustomRecipeState) or other._delayed is None:
            return False
        if other._delayed.scale.numel() != self.num_quantizers:
            return False
        self._inherited = other._delayed
        return True

    @property
    def delayed(self) -> DelayedScalingRecipeState | None:
        return self._delayed


@functools.cache
def _state_classes() -> dict[str, type[RecipeState]]:
    """State class by the predicate that tells a recipe's family."""
    return {
        "delayed": DelayedScalingRecipeState,
        "float8_current_scaling": Float8CurrentScalingRecipeState,
        "float8_block_scaling": Float8BlockScalingRecipeState,
        "mxfp8": MXFP8BlockScalingRecipeState,
        "nvfp4": NVFP4BlockScalingRecipeState,
        "custom": CustomRecipeState,
    }
