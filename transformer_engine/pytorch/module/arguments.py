# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of constructor arguments that several modules share."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch

PARAMETER_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_size(owner: str, name: str, value: Any, minimum: int = 0, unit: str = "elements") -> int:
    """`value` as an int of at least `minimum`; TypeError for another kind, ValueError below."""
    try:
        if isinstance(value, bool):
            raise TypeError
        size = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{owner}: {name} is {value!r} of type {type(value).__name__}; an int is required. "
            "Convert it with int()."
        ) from None
    if size < minimum:
        raise ValueError(
            f"{owner}: {name} is {size}; at least {minimum} is required. Pass the number of "
            f"{'ranks' if name == 'tp_size' else unit}."
        )
    return size


def check_shape(owner: str, name: str, value: Any) -> tuple[int, ...]:
    """The sizes of the dimensions that a norm takes together; an int is one of them."""
    if isinstance(value, (str, bytes, bool, Mapping)) or not (
        isinstance(value, Iterable) or hasattr(value, "__index__")
    ):
        raise TypeError(
            f"{owner}: {name} is {value!r} of type {type(value).__name__}; an int or a sequence of "
            "ints is required. Pass the sizes of the trailing dimensions."
        )
    if not isinstance(value, Iterable):
        return (check_size(owner, name, value),)
    shape = tuple(check_size(owner, f"{name}[{i}]", size) for i, size in enumerate(value))
    if not shape:
        raise ValueError(
            f"{owner}: {name} is empty; at least one dimension is required. Pass the sizes of the "
            "trailing dimensions."
        )
    return shape


def check_eps(owner: str, eps: Any) -> None:
    """TypeError for no number; ValueError for a negative or non-finite one."""
    if isinstance(eps, bool) or not isinstance(eps, numbers.Real):
        raise TypeError(
            f"{owner}: eps is {eps!r} of type {type(eps).__name__}; a number is required. "
            "The usual value is 1e-5."
        )
    if not 0 <= float(eps) < math.inf:
        raise ValueError(
            f"{owner}: eps is {eps}; a finite number of at least 0 is required. "
            "The usual value is 1e-5."
        )


def check_margin(owner: str, value: Any) -> None:
    """Multiprocessors to leave free: an int of at least 0, or a dict of one for each pass."""
    if not isinstance(value, Mapping):
        check_size(owner, "sm_margin", value, unit="multiprocessors")
        return
    for key, count in value.items():
        if key not in ("forward", "backward", "inference"):
            raise ValueError(
                f"{owner}: sm_margin has the key {key!r}; 'forward', 'backward' and 'inference' "
                "are allowed. Pass one int for all three."
            )
        check_size(owner, f"sm_margin[{key!r}]", count, unit="multiprocessors")


def check_callable(owner: str, name: str, value: Any) -> None:
    """TypeError unless it is None or can be called."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{owner}: {name} is {value!r} of type {type(value).__name__}; a callable or None is "
            "required. Pass the function itself, not its name."
        )


def check_name(owner: str, name: str, value: Any) -> None:
    """TypeError unless it is None or a str."""
    if value is not None and not isinstance(value, str):
        raise TypeError(
            f"{owner}: {name} is {value!r} of type {type(value).__name__}; a str or None is "
            "required. Leave it out for the default."
        )


def check_flags(owner: str, **flags: Any) -> None:
    """TypeError for a flag whose truth is likely not what the caller meant, such as "False"."""
    for name, value in flags.items():
        kind = type(value)
        if kind is bool or value is None:
            continue
        if isinstance(value, (str, bytes, float, Mapping, Iterable)) or callable(value):
            raise TypeError(
                f"{owner}: {name} is {value!r} of type {kind.__name__}; a bool is required. "
                "Pass True or False by keyword."
            )


def parameter_dtype(owner: str, name: str, dtype: Any) -> torch.dtype:
    """The dtype of new parameters, torch's default for None; TypeError for one without kernels."""
    source = name
    if dtype is None:
        dtype, source = torch.get_default_dtype(), f"{name} (from torch.get_default_dtype())"
    if dtype not in PARAMETER_DTYPES:
        raise TypeError(
            f"{owner}: {source} is {dtype!r}; torch.float32, torch.bfloat16 or torch.float16 is "
            f"required. Pass {name}=torch.float32."
        )
    return dtype
