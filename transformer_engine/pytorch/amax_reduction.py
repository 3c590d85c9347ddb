# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Amaxes of delayed scaling over a process group, in one collective per step.

All modules that were used under one recipe are reduced together, in an order that the ranks have
agreed upon: each has a slot, which on a rank is bound to one state for good. A rank that uses a
module for the first time says so in the collective; then the ranks list what is new to them, pair
it by name, and make the states of a slot equal: that of the rank that has advanced it most often.
A state takes part from its first use on. So a module that is alive on some ranks alone, such as an
old one of the same name, meets none of another rank's.
"""

from __future__ import annotations

import re
import weakref
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .cpp_extensions import state as tex
from .distributed import get_distributed_world_size
from .rank_errors import naming

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of a recipe's callables: another one on each rank
_HEADER = 3  # whether a rank knows new modules, the bucket's number, and its negative


class Bucket(NamedTuple):
    """States that are reduced together: process group, text of the region's recipe, direction."""

    group: Any
    recipe: str
    is_forward: bool

    @property
    def key(self) -> tuple[str, bool]:
        """The same on all ranks."""
        return _ADDRESS.sub("", self.recipe), self.is_forward

    @property
    def number(self) -> float:
        """Exact in FP32, and most likely another one for other recipes and directions."""
        return float(zlib.crc32(repr(self.key).encode()) & 0xFFFFFF)

    def has(self, state: Any) -> bool:
        """Whether a state was last used in such a region."""
        return bool(
            state.reduces_amax
            and state.group is self.group
            and state.region_recipe_name == self.recipe
            and state.is_forward == self.is_forward
        )


@dataclass(eq=False)
class Slot:
    """A module as the ranks of a group have agreed on it; all of them hold the same."""

    shape: tuple[int, ...]  # of the history: [length, amaxes]
    names: dict[int, str] = field(default_factory=dict)  # by rank, of those that (had) used it


@dataclass(frozen=True)
class Member:
    """A state as other ranks see it."""

    name: str  # of the module
    shape: tuple[int, ...]
    version: int
    scale: list[float]
    history: list[list[float]]

    @classmethod
    def of(cls, state: Any) -> Member:
        """What to tell of a state."""
        history = state.amax_history
        return cls(
            name=state.name,
            shape=tuple(history.shape),
            version=state.version,
            scale=state.scale.tolist(),
            history=history.tolist() if state.version else [],
        )


@dataclass
class _Layout:
    """What a group's ranks reduce."""

    slots: dict[tuple[str, bool], list[Slot]] = field(default_factory=dict)  # by Bucket.key
    own: dict[tuple[int, str], Slot] = field(default_factory=dict)  # by state and recipe

    def size(self) -> int:
        """Elements of what is reduced: the same for every bucket, so that ranks in different ones
        find it out."""
        sizes = (sum(1 + slot.shape[1] for slot in slots) for slots in self.slots.values())
        return _HEADER + max(sizes, default=0)

    def living(self, used: Iterable[int]) -> dict[tuple[str, bool], list[bool]]:
        """Which slots this rank has states for; `used` are numbers of some of them."""
        numbers = {
            state.number
            for is_forward in (False, True)
            for state in tex.registered_delayed_scaling(is_forward)
        }.union(used)
        slots = {id(slot) for (number, _), slot in self.own.items() if number in numbers}
        return {key: [id(slot) in slots for slot in known] for key, known in self.slots.items()}

    def forget(self, ranks: Sequence[dict[tuple[str, bool], list[bool]]]) -> None:
        """Drop the slots that no rank has states for."""
        for key, known in self.slots.items():
            flags = zip(*(told[key] for told in ranks), strict=True)
            alive = [any(of_ranks) for of_ranks in flags]
            self.slots[key] = [slot for slot, keep in zip(known, alive, strict=True) if keep]
        kept = {id(slot) for known in self.slots.values() for slot in known}
        self.own = {key: slot for key, slot in self.own.items() if id(slot) in kept}


@dataclass(frozen=True)
class _Told:
    """What a rank tells when ranks agree anew."""

    is_alive: dict[tuple[str, bool], list[bool]]  # which of the agreed slots it has states for
    members: dict[int, Member]  # by index of the bucket's slots
    new: list[Member]


# By group, which may be destroyed.
_layouts: weakref.WeakKeyDictionary[Any, _Layout] = weakref.WeakKeyDictionary()


def _layout_of(group: Any) -> _Layout:
    if group is None:
        group = torch.distributed.distributed_c10d.GroupMember.WORLD
    return _layouts.setdefault(group, _Layout())


# ---- agreement -------------------------------------------------------------------------------


def _agree(bucket: Bucket, layout: _Layout, states: dict[int, Any], new: list[Any]) -> None:
    """Find slots for what is new on any rank, and equalize the states of each slot.

    `states` are this rank's that have a slot, by number; those of `new` are added.
    """
    agreed = layout.slots.setdefault(bucket.key, [])
    slot_of = {number: layout.own[number, bucket.recipe] for number in states}
    index_of = {id(slot): index for index, slot in enumerate(agreed)}
    told = _Told(
        is_alive=layout.living(states),
        members={index_of[id(slot_of[n])]: Member.of(state) for n, state in states.items()},
        new=[Member.of(state) for state in new],
    )
    ranks: list[Any] = [None] * get_distributed_world_size(bucket.group)
    with naming("autocast", "all-gather of what modules there are", bucket.group):
        torch.distributed.all_gather_object(ranks, told, group=bucket.group)
    layout.forget([listed.is_alive for listed in ranks])
    paired = pair(layout.slots[bucket.key], [listed.new for listed in ranks])
    newest: dict[int, Member] = {}  # by id of the slot
    for listed, found in zip(ranks, paired, strict=True):
        known = [(agreed[index], member) for index, member in listed.members.items()]
        for slot, member in [*known, *zip(found, listed.new, strict=True)]:
            best = newest.get(id(slot))
            if best is None or member.version > best.version:
                newest[id(slot)] = member
    rank = torch.distributed.get_rank(bucket.group)
    for state, slot in zip(new, paired[rank], strict=True):
        layout.own[state.number, bucket.recipe] = slot
        states[state.number] = state
    for number, state in states.items():
        _catch_up(state, newest[id(layout.own[number, bucket.recipe])])


def pair(slots: list[Slot], new: Sequence[Sequence[Member]]) -> list[list[Slot]]:
    """A slot for each new module of each rank, in the order of its first use there.

    Modules of one name are the same module: those that become known at once, and those that other
    ranks have used before. Modules without a name of their own are numbered as they are built:
    where no number is the same on two ranks, the order of first use decides.

    Parameters
    ----------
    slots : list of Slot
        Those agreed so far; new ones are added.
    new : sequence of sequences of Member
        By rank.

    Raises
    ------
    RuntimeError
        If modules of one name differ in shape, or if several could be the same; nothing is changed.
    """
    names = [{member.name for member in listed} for listed in new]
    sizes = [[member.shape[1] for member in listed] for listed in new]
    is_numbered = all(name.startswith("Layer_") for own in names for name in own)
    is_disjoint = len(new) > 1 and not any(own & names[0] for own in names[1:])
    if is_numbered and is_disjoint and all(own == sizes[0] for own in sizes):
        paired = [Slot(member.shape) for member in new[0]]
        assigned = [list(zip(listed, paired, strict=True)) for listed in new]
    else:
        assigned = _pair_by_name(slots, new)
    known = {id(slot) for slot in slots}
    for rank, pairs in enumerate(assigned):
        for member, slot in pairs:
            slot.names[rank] = member.name
            if id(slot) not in known:
                known.add(id(slot))
                slots.append(slot)
    return [[slot for _, slot in pairs] for pairs in assigned]


def _pair_by_name(
    slots: list[Slot], new: Sequence[Sequence[Member]]
) -> list[list[tuple[Member, Slot]]]:
    by_name: dict[str, dict[int, list[Member]]] = {}
    for rank, listed in enumerate(new):
        for member in listed:
            by_name.setdefault(member.name, {}).setdefault(rank, []).append(member)
    slot_of: dict[int, Slot] = {}  # by id of the member
    for name, of_ranks in by_name.items():
        waiting = [
            slot
            for slot in slots
            if name in slot.names.values() and not slot.names.keys() & of_ranks.keys()
        ]
        counts = {rank: len(members) for rank, members in of_ranks.items()}
        _check_counts(name, counts, len(waiting))
        first = next(iter(of_ranks.values()))
        found = waiting or [Slot(member.shape) for member in first]
        for rank, members in of_ranks.items():
            for member, slot in zip(members, found, strict=True):
                _check_shape(member, rank, slot)
                slot_of[id(member)] = slot
    return [[(member, slot_of[id(member)]) for member in listed] for listed in new]


def _check_counts(name: str, counts: dict[int, int], waiting: int) -> None:
    """One module of a name on each rank, or as many as the others have."""
    rank, count = next(iter(counts.items()))
    wanted = {waiting} if waiting else set(counts.values())
    if set(counts.values()) == wanted and len(wanted) == 1:
        return
    if waiting:
        others = f"other ranks have used {waiting} before"
    else:
        others = ", ".join(f"{n} on rank {r}" for r, n in counts.items() if n != count)
    raise RuntimeError(
        f"autocast: {count} modules named {name} were used for the first time on rank {rank} of "
        f"the amax_reduction_group, {others}; which of them are the same cannot be told. Give each "
        "module a name of its own (name=...), or use those of one name in the same step on all "
        "ranks."
    )


def _check_shape(member: Member, rank: int, slot: Slot) -> None:
    if member.shape != slot.shape:
        raise RuntimeError(
            f"autocast: {member.name} has an amax history of shape {member.shape} on rank {rank} "
            f"of the amax_reduction_group and of shape {slot.shape} on another one; modules of one "
            "name must be the same on all ranks. Build the model alike on every rank, and give its "
            "modules names."
        )


def _catch_up(state: Any, newest: Member) -> None:
    """Take over a scale and history that were advanced on another rank before this one knew it."""
    if newest.version <= state.version:
        return
    state.replace_scale(torch.tensor(newest.scale))
    past = torch.tensor(newest.history)[1:]  # row 0: the step under way
    state.amax_history[1:] = past.to(state.amax_history.device)


# ---- reduction -------------------------------------------------------------------------------


def _all_reduce(
    bucket: Bucket, layout: _Layout, states: dict[int, Any], used: set[int], is_outdated: bool
) -> list[tuple[Any, torch.Tensor]] | None:
    """MAX over the group of the newest amaxes; (state, amaxes) of what any rank used.

    None if a rank knows a module that has no slot.
    """
    slots = layout.slots.get(bucket.key, [])
    of_slot = {id(layout.own[number, bucket.recipe]): s for number, s in states.items()}
    device = next(iter(states.values())).scale.device if states else _device_of(bucket.group)
    header = [float(is_outdated), bucket.number, -bucket.number]
    parts = []
    for slot in slots:
        state = of_slot.get(id(slot))
        header.append(float(state is not None and state.number in used))
        parts.append(
            torch.zeros(slot.shape[1], device=device) if state is None else state.amax_history[0]
        )
    rest = torch.zeros(layout.size() - len(header) - sum(p.numel() for p in parts), device=device)
    flat = torch.cat([torch.tensor(header, device=device), *parts, rest])
    with naming("autocast", "all-reduce of delayed-scaling amaxes", bucket.group):
        torch.distributed.all_reduce(flat, op=torch.distributed.ReduceOp.MAX, group=bucket.group)
    outdated, largest, smallest, *flags = flat[: len(header)].tolist()
    if largest != -smallest:
        _refuse_other_recipes(bucket)
    if outdated:
        return None
    amaxes = flat[len(header) : flat.numel() - rest.numel()].split([s.shape[1] for s in slots])
    return [
        (of_slot[id(slot)], amax)
        for slot, amax, is_used in zip(slots, amaxes, flags, strict=True)
        if is_used and id(slot) in of_slot
    ]


def _refuse_other_recipes(bucket: Bucket) -> None:
    """Raise on all ranks, which reduce unlike things."""
    ranks: list[Any] = [None] * get_distributed_world_size(bucket.group)
    with naming("autocast", "all-gather of recipes", bucket.group):
        torch.distributed.all_gather_object(ranks, bucket.key, group=bucket.group)
    rank, (recipe, is_forward) = next(
        (rank, key) for rank, key in enumerate(ranks) if key != ranks[0]
    )
    directions = ["forward" if key else "backward" for key in (ranks[0][1], is_forward)]
    raise RuntimeError(
        f"autocast: rank 0 of the amax_reduction_group ends a {directions[0]} under "
        f"({ranks[0][0]}), rank {rank} a {directions[1]} under ({recipe}); all ranks must run the "
        "same passes under one recipe. Give the same recipe on all ranks, or pass a group of those "
        "that share one as amax_reduction_group."
    )


def _device_of(group: Any) -> torch.device:
    """Where a rank that knows no module yet has to keep what it reduces."""
    backend = torch.distributed.get_backend(group)
    is_cuda = backend == "nccl" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")


def reduce_amaxes(
    bucket: Bucket, used: Iterable[Any], *, may_be_empty: bool
) -> list[tuple[Any, torch.Tensor]]:
    """(state, amaxes over all ranks) of those of this rank's states that any rank has used.

    Parameters
    ----------
    bucket : Bucket
    used : iterable of DelayedScalingState
        By this rank, in the order of use; those of other buckets are left out.
    may_be_empty : bool
        Whether the region's recipe may have no states; then no rank communicates if it has none.

    Raises
    ------
    RuntimeError
        If the ranks of the group have different modules, or run under different recipes.
    """
    layout = _layout_of(bucket.group)
    of_step = {state.number: state for state in used if bucket.has(state)}
    registered = tex.registered_delayed_scaling(bucket.is_forward)
    known = {state.number: state for state in registered if bucket.has(state)} | of_step
    states = {n: state for n, state in known.items() if (n, bucket.recipe) in layout.own}
    new = [state for n, state in of_step.items() if n not in states]
    if may_be_empty and not (states or new or layout.slots.get(bucket.key)):
        return []
    reduced = _all_reduce(bucket, layout, states, set(of_step), bool(new))
    if reduced is None:
        _agree(bucket, layout, states, new)
        reduced = _all_reduce(bucket, layout, states, set(of_step), False)
        assert reduced is not None
    return reduced
