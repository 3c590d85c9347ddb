# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ends of a delayed-scaling step that need Python: callables of a recipe, and process groups.

Over a process group, all modules that were used under one recipe are reduced in one collective per
step, whose layout the ranks have agreed upon. A rank that has come to know another module says so
in that collective; then the ranks list their modules and agree anew, and the states of the module
are made equal: those of the rank that has advanced it most often.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from transformer_engine.common.environment import read_switch
from transformer_engine.common.recipe import DelayedScaling

from .cpp_extensions import state as tex
from .distributed import get_distributed_world_size
from .rank_errors import naming

# Modules whose amaxes are reduced together: process group and text of the region's recipe.
_Bucket = tuple[Any, str]


@dataclass(frozen=True)
class _Member:
    """A state as other ranks see it."""

    name: str  # of the module, and how many of that name a rank met before
    shape: tuple[int, ...]  # of the history: [length, amaxes]
    version: int
    scale: list[float]
    history: list[list[float]]


@dataclass
class _Layout:
    """What the ranks reduce at the end of a step, in this order."""

    sizes: list[int] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)  # this rank's names -> index of `sizes`


# By group, which may be destroyed; then by recipe and direction.
_layouts: weakref.WeakKeyDictionary[Any, dict[tuple[str, bool], _Layout]] = (
    weakref.WeakKeyDictionary()
)


def _layout_of(bucket: _Bucket, is_forward: bool) -> _Layout:
    group, recipe_name = bucket
    if group is None:
        group = torch.distributed.distributed_c10d.GroupMember.WORLD
    return _layouts.setdefault(group, {}).setdefault((recipe_name, is_forward), _Layout())


def _members(bucket: _Bucket, is_forward: bool) -> dict[str, Any]:
    """The states of a bucket by name, also those not used in this step: another rank may have."""
    group, recipe_name = bucket
    members: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for state in tex.registered_delayed_scaling(is_forward):
        if state.reduces_amax and state.group is group and state.region_recipe_name == recipe_name:
            count = seen[state.name] = seen.get(state.name, -1) + 1  # copies of a module
            members[f"{state.name}#{count}"] = state
    return members


# ---- agreement -------------------------------------------------------------------------------


def _agree(group: Any, members: dict[str, Any], layout: _Layout) -> None:
    """List the modules of all ranks, choose one order for them, and equalize their states."""
    mine = [
        _Member(
            name=name,
            shape=tuple(state.amax_history.shape),
            version=state.version,
            scale=state.scale.tolist(),
            history=state.amax_history.tolist() if state.version else [],
        )
        for name, state in members.items()
    ]
    ranks: list[Any] = [None] * get_distributed_world_size(group)
    with naming("autocast", "all-gather of what modules there are", group):
        torch.distributed.all_gather_object(ranks, mine, group=group)
    layout.sizes, slots_of_ranks = _merge(ranks)
    layout.slots = slots_of_ranks[torch.distributed.get_rank(group)]
    newest: dict[int, _Member] = {}
    for listed, slots in zip(ranks, slots_of_ranks, strict=True):
        for member in listed:
            slot = slots[member.name]
            if slot not in newest or member.version > newest[slot].version:
                newest[slot] = member
    for name, state in members.items():
        _catch_up(state, newest[layout.slots[name]])


def _merge(ranks: list[list[_Member]]) -> tuple[list[int], list[dict[str, int]]]:
    """Sizes in the common order, and where in it each rank's modules are.

    Modules of one name are the same module. Those without a name of their own are numbered as they
    are built: where no number is the same on two ranks, the order of first use decides.
    """
    names = [{member.name for member in listed} for listed in ranks]
    sizes = [[member.shape[1] for member in listed] for listed in ranks]
    is_numbered = all(name.startswith("Layer_") for own in names for name in own)
    is_disjoint = len(ranks) > 1 and not any(own & names[0] for own in names[1:])
    if is_numbered and is_disjoint and all(own == sizes[0] for own in sizes):
        return sizes[0], [{m.name: i for i, m in enumerate(listed)} for listed in ranks]
    found: dict[str, tuple[int, ...]] = {}
    for rank, listed in enumerate(ranks):
        for member in listed:
            if found.setdefault(member.name, member.shape) != member.shape:
                name = member.name.partition("#")[0]
                raise RuntimeError(
                    f"autocast: {name} has an amax history of shape {member.shape} on rank {rank} "
                    f"of the amax_reduction_group and of shape {found[member.name]} on another "
                    "one; modules of one name must be the same on all ranks. Build the model alike "
                    "on every rank, give its modules names, and use one recipe."
                )
    order = {name: index for index, name in enumerate(found)}
    return [shape[1] for shape in found.values()], [
        {name: order[name] for name in own} for own in names
    ]


def _catch_up(state: Any, newest: _Member) -> None:
    """Take over a scale and history that were advanced on another rank before this one knew it."""
    if newest.version <= state.version:
        return
    state.replace_scale(torch.tensor(newest.scale))
    past = torch.tensor(newest.history)[1:]  # row 0: the step under way
    state.amax_history[1:] = past.to(state.amax_history.device)


# ---- reduction -------------------------------------------------------------------------------


def _reduce(
    group: Any, members: dict[str, Any], used: Sequence[bool], layout: _Layout
) -> list[tuple[Any, torch.Tensor]] | None:
    """MAX over `group` of the newest amaxes; (state, amaxes) of the modules that any rank used.

    None if a rank has a module that is not in the layout.
    """
    count = len(layout.sizes)
    is_outdated = any(name not in layout.slots for name in members)
    device = next(iter(members.values())).scale.device if members else _device_of(group)
    flags = torch.zeros(1 + count, device=device)
    amaxes = list(torch.zeros(sum(layout.sizes), device=device).split(layout.sizes))
    flags[0] = is_outdated
    for (name, state), is_used in zip(members.items(), used, strict=True):
        if name in layout.slots:
            slot = layout.slots[name]
            flags[1 + slot] = is_used
            amaxes[slot] = state.amax_history[0]
    flat = torch.cat([flags, *amaxes])
    with naming("autocast", "all-reduce of delayed-scaling amaxes", group):
        torch.distributed.all_reduce(flat, op=torch.distributed.ReduceOp.MAX, group=group)
    reduced_flags, *reduced = flat.split([1 + count, *layout.sizes])
    outdated, *used_anywhere = (flag > 0 for flag in reduced_flags.tolist())
    if outdated:
        return None
    slots = [(state, layout.slots[name]) for name, state in members.items()]
    return [(state, reduced[slot]) for state, slot in slots if used_anywhere[slot]]


def _device_of(group: Any) -> torch.device:
    """Where a rank that knows no module yet has to keep what it reduces."""
    backend = torch.distributed.get_backend(group)
    is_cuda = backend == "nccl" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")


def _reduce_bucket(
    bucket: _Bucket, is_forward: bool, states: Sequence[Any], *, is_custom: bool
) -> None:
    members = _members(bucket, is_forward)
    layout = _layout_of(bucket, is_forward)
    if not members and not layout.sizes and is_custom:
        return  # a recipe that asks for no delayed scaling
    of_step = {id(state) for state in states}
    used = [id(member) in of_step for member in members.values()]
    reduced = _reduce(bucket[0], members, used, layout)
    if reduced is None:
        _agree(bucket[0], members, layout)
        reduced = _reduce(bucket[0], members, used, layout)
        assert reduced is not None
    for state, amaxes in reduced:
        _advance(state, amaxes)


# ---- updates ---------------------------------------------------------------------------------


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
        If the ranks of a group have different modules.
    """
    buckets: list[_Bucket] = [] if region is None else [region[:2]]
    is_custom = region is not None and not region[2]
    for state in states:
        if not state.reduces_amax:
            _advance(state, None)
            continue
        bucket = (state.group, state.region_recipe_name)
        if not any(bucket[0] is group and bucket[1] == name for group, name in buckets):
            buckets.append(bucket)
    for bucket in buckets:
        _reduce_bucket(bucket, is_forward, states, is_custom=is_custom)
