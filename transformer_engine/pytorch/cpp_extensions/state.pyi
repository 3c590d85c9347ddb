# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from transformer_engine.common.recipe import Recipe

class NativeRecipe:
    def __init__(
        self,
        name: str,
        is_delayed: bool = False,
        margin: float = 0.0,
        most_recent: bool = False,
        reduces_amax: bool = True,
        has_python_update: bool = False,
        python_recipe: Any = None,
        backward_override: str | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def is_delayed(self) -> bool: ...
    @property
    def has_python_update(self) -> bool: ...
    @property
    def python_recipe(self) -> Any: ...

class AutocastState:
    enabled: bool
    calibrating: bool
    is_graph: bool
    first_module: bool
    @property
    def recipe_object(self) -> Any: ...
    @property
    def group(self) -> Any: ...

class DelayedScalingState:
    def __init__(
        self,
        scale: torch.Tensor,
        amax_history: torch.Tensor,
        recipe: NativeRecipe,
        is_forward: bool,
        fp8_max: float,
    ) -> None: ...
    @property
    def scale(self) -> torch.Tensor: ...
    @property
    def amax_history(self) -> torch.Tensor: ...
    @property
    def recipe(self) -> NativeRecipe: ...
    @property
    def is_forward(self) -> bool: ...
    @property
    def fp8_max(self) -> float: ...
    @property
    def version(self) -> int: ...
    name: str
    @property
    def region_recipe_name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def group(self) -> Any: ...
    @property
    def reduces_amax(self) -> bool: ...
    def mark_used(self) -> None: ...
    def update(self, reduced_amax: torch.Tensor | None = None) -> None: ...
    def replace_scale(self, scale: torch.Tensor) -> None: ...

class Region:
    enabled: bool
    calibrating: bool
    recipe: Recipe | None
    amax_reduction_group: Any
    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        amax_reduction_group: Any = None,
        _graph: bool = False,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

def set_region_functions(
    *,
    check_arguments: Callable[[Any, Any, Any, Any], tuple[bool, bool]],
    default_recipe: Callable[[], Recipe],
    native_recipe: Callable[[Recipe], NativeRecipe],
    world_size: Callable[[Any], int],
    world: Any,
    recipe_type: type[Recipe],
    delayed_type: type[Recipe],
    custom_type: type[Recipe],
) -> None: ...
def autocast_enter(
    enabled: bool,
    calibrating: bool,
    is_graph: bool,
    reduces_amax: bool,
    recipe: NativeRecipe | None,
    recipe_object: Any,
    group: Any,
) -> None: ...
def autocast_exit() -> None: ...
def autocast_depth() -> int: ...
def autocast_state() -> AutocastState: ...
def set_autocast_state(state: AutocastState) -> None: ...
def take_first_module() -> bool: ...
def is_in_backward() -> bool: ...
def set_recompute_phase(phase: int) -> None: ...
def register_delayed_scaling(state: DelayedScalingState) -> None: ...
def registered_delayed_scaling(is_forward: bool) -> list[DelayedScalingState]: ...
def update_delayed_scaling(is_forward: bool) -> None: ...
def reset_quantization_state() -> None: ...
def set_python_update(
    update: Callable[[Sequence[DelayedScalingState], bool, tuple[Any, str, bool] | None], None],
) -> None: ...
def set_quantized_tensor_factory(factory: Callable[..., torch.Tensor]) -> None: ...
