# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ends of a delayed-scaling step that need Python: callables of a recipe, and process groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from transformer_engine.common.environment import read_switch
from transformer_engine.common.recipe import DelayedScaling

from .amax_reduction import Bucket, reduce_amaxes


def _checked_answer(field_name: str, answer: Any, like: torch.Tensor) -> torch.Tensor:
    """What a callable of the recipe returned: one floating-point number per tensor."""
    if not isinstance(answer, torch.Tensor):
        raise TypeError(
            f"DelayedScaling: {field_name} returned {answer!r} of type {type(answer).__name__}; a "
            f"floating-point tensor of shape {tuple(like.shape)} is required."
        )
    if answer.shape != like.shape or not answer.is_floating_point():
        raise ValueError(
            f"DelayedScaling: {field_name} returned a tensor of shape {tuple(answer.shape)} and "
            f"dtype {answer.dtype}; floating point of shape {tuple(like.shape)}, one number for "
            "each quantized tensor, is required."
        )
    return answer


def _check_scales(scale: torch.Tensor) -> None:
    usable = torch.isfinite(scale) & (scale > 0)
    if not usable.all():
        raise ValueError(
            f"DelayedScaling: scaling_factor_compute_algo returned scales {scale.tolist()}; "
            "positive finite ones are required. Keep the present scale where the amax is unusable."
        )


def _unfused_update(state: Any, recipe: DelayedScaling, reduced: torch.Tensor | None) -> None:
    """The update in torch operations, for recipes with callables.

    Unlike the native one it rolls the history also where the amax is 0, and computes
    ``(fp8_max / amax) / 2**margin``.
    """
    history = state.amax_history
    if reduced is not None:
        history = history.clone()  # the state changes only once the callables have answered well
        history[0] = reduced
    algo = recipe.amax_compute_algo
    if callable(algo):
        amax = _checked_answer("amax_compute_algo", algo(history), state.scale)
    else:
        amax = history.amax(dim=0) if algo == "max" else history[0].clone()
    rolled = torch.roll(history, -1, 0) if history.shape[0] > 1 else history.clone()
    rolled[0] = 0
    if recipe.scaling_factor_compute_algo is not None:
        scale = recipe.scaling_factor_compute_algo(amax, state.scale, state.fp8_max, recipe)
        _check_scales(_checked_answer("scaling_factor_compute_algo", scale, state.scale))
    else:
        # A tensor over a tensor: torch computes a number over a tensor by its reciprocal.
        quotient = (torch.full_like(amax, state.fp8_max) / amax) / 2**recipe.margin
        quotient = torch.where(torch.isinf(quotient), torch.finfo(torch.float32).max, quotient)
        usable = torch.isfinite(amax) & (amax > 0)
        scale = torch.where(usable, quotient, state.scale)
    state.replace_scale(scale)
    state.amax_history.copy_(rolled)


def _advance(state: Any, reduced: torch.Tensor | None) -> None:
    if state.recipe.has_python_update or read_switch("NVTE_UNFUSED_FP8_UPDATE"):
        _unfused_update(state, state.recipe.python_recipe, reduced)
    else:
        state.update(reduced)


def update_states(
    states: Sequence[Any], is_forward: bool, region: tuple[Any, str, bool] | None
) -> None:
    """End a step of states that reduce over a process group or whose recipe holds callables.

    Parameters
    ----------
    states : sequence of DelayedScalingState
        Those that were used.
    is_forward : bool
        Their direction.
    region : tuple, optional
        Group and recipe of the region that ended, if that reduces, and whether the recipe is
        `DelayedScaling` itself: this rank takes part in the reduction even if it used none of the
        modules.

    Raises
    ------
    RuntimeError
        If the ranks of a group have different modules, or run under different recipes.
    """
    buckets = [] if region is None else [Bucket(*region[:2], is_forward)]
    is_custom = region is not None and not region[2]
    for state in states:
        if not state.reduces_amax:
            _advance(state, None)
        elif not any(bucket.has(state) for bucket in buckets):
            buckets.append(Bucket(state.group, state.region_recipe_name, is_forward))
    for bucket in buckets:
        for state, amaxes in reduce_amaxes(bucket, states, may_be_empty=is_custom):
            _advance(state, amaxes)
