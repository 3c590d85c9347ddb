# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of public arguments: type and range, each with the message of a refusal.

Every check takes who was called and the argument's name. A value of the wrong type is a TypeError,
one of the right type out of its range a ValueError.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

_SHORT = (str, int, float, tuple, list, type(None), torch.dtype)


def received(value: Any) -> str:
    """A value as a message shows it: itself when that is short, else its type."""
    text = repr(value) if isinstance(value, _SHORT) else ""
    return text if 0 < len(text) <= 60 else f"of type {type(value).__name__}"


def check_int(who: str, name: str, value: Any, minimum: int = 1) -> int:
    """An integer (of Python, numpy or torch, but no bool) that is at least `minimum`."""
    rule = f"it must be an int, at least {minimum}."
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{who}: {name} is {received(value)}; {rule}") from None
    if isinstance(value, bool):
        raise TypeError(f"{who}: {name} is {value}; {rule}")
    if number < minimum:
        raise ValueError(f"{who}: {name} is {number}; {rule}")
    return number


def check_number(
    who: str,
    name: str,
    value: Any,
    rule: str = "it must be a finite number.",
    accepts: Callable[[float], bool] = math.isfinite,
) -> float:
    """A real number (no bool) that `accepts` takes; `rule` says which those are."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{who}: {name} is {received(value)}; {rule}")
    if not accepts(float(value)):
        raise ValueError(f"{who}: {name} is {value}; {rule}")
    return float(value)


def check_not_negative(who: str, name: str, value: Any) -> float:
    """A finite number, 0 or more."""
    rule = "it must be a finite number, at least 0."
    return check_number(who, name, value, rule, lambda x: 0.0 <= x < math.inf)


def check_probability(who: str, name: str, value: Any) -> float:
    """A number in 0..1."""
    return check_number(who, name, value, "it must be in 0..1.", lambda x: 0.0 <= x <= 1.0)


def check_share(who: str, name: str, value: Any) -> float:
    """A probability that is not 1."""
    rule = f"0 <= {name} < 1 must hold."
    return check_number(who, name, value, rule, lambda x: 0.0 <= x < 1.0)


def check_epsilon(who: str, name: str, value: Any) -> float:
    """What is added to a variance."""
    rule = "it must be a finite number, at least 0."
    return check_number(who, name, value, rule, lambda x: 0.0 <= x < math.inf)


def check_choice(who: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """One of a few values; also an unhashable value is just none of them."""
    if not any(value is choice or (type(value) is str and value == choice) for choice in choices):
        names = ", ".join(str(choice) for choice in choices)
        raise ValueError(f"{who}: {name} is {received(value)}; it must be one of {names}.")


def check_flag(who: str, name: str, value: Any) -> bool:
    """A bool, or an integer or numpy value that stands for one."""
    if not isinstance(value, bool):
        is_number = isinstance(value, numbers.Integral) or type(value).__name__ in ("bool", "bool_")
        if not is_number or value not in (0, 1):
            raise TypeError(f"{who}: {name} is {received(value)}; it must be True or False.")
    return bool(value)


def check_callables(who: str, **named: Any) -> None:
    """Each argument a callable, or None for the default."""
    for name, value in named.items():
        if value is not None and not callable(value):
            raise TypeError(f"{who}: {name} is {received(value)}; it must be callable, or None.")


def check_tensor(who: str, name: str, value: Any) -> torch.Tensor:
    """A torch tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{who}: {name} is {received(value)}; it must be a torch.Tensor. Convert it, for "
            "example with torch.as_tensor."
        )
    return value


def check_params_dtype(who: str, name: str, value: Any) -> None:
    """A dtype that parameters can have, or None for torch's default."""
    if value is None:
        return
    is_usable = isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize >= 2
    if not is_usable:
        raise TypeError(
            f"{who}: {name} is {received(value)}; it must be torch.float32, torch.bfloat16 or "
            "torch.float16. For FP8 parameters build the module inside quantized_model_init."
        )


def check_group(who: str, name: str, group: Any) -> None:
    """A process group (or what has its methods), None, or what a rank outside a group holds."""
    if group is None or (callable(getattr(group, "size", None)) and hasattr(group, "rank")):
        return
    outside = torch.distributed.is_available() and torch.distributed.GroupMember.NON_GROUP_MEMBER
    if outside is not False and group is outside:
        return
    raise TypeError(
        f"{who}: {name} is {received(group)}; it must be a torch.distributed.ProcessGroup, or None."
    )


def group_size(who: str, name: str, group: Any) -> int:
    """Number of ranks of a process group that this rank belongs to."""
    try:
        size = int(torch.distributed.get_world_size(group))
    except (AttributeError, TypeError):
        raise TypeError(
            f"{who}: {name} is {received(group)}; it must be a torch.distributed.ProcessGroup, or "
            "None."
        ) from None
    if size < 1:  # what torch answers outside of the group
        raise ValueError(
            f"{who}: {name} is a group without this rank, rank {torch.distributed.get_rank()}; a "
            "group that this rank belongs to is required. Pass each rank its own group, or call "
            "this on the ranks of the group only."
        )
    return size


def tensor_parallel_size(who: str, tp_size: Any, tp_group: Any) -> int:
    """Number of tensor-parallel ranks: that of the group when there is one, else `tp_size`."""
    if tp_group is None:
        return check_int(who, "tp_size", tp_size)
    return group_size(who, "tp_group", tp_group)
