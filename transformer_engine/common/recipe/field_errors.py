# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Messages of refused fields: who, what was received, the rule, what to do.

pydantic decides what is refused and wraps the message in its ``ValidationError``. Its own texts
speak of unions and of the values of enumerations, not of what a caller would write.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator


def received(value: Any) -> str:
    """A value as a message shows it: itself when that is short, else its type."""
    if isinstance(value, Enum):
        return str(value)
    is_plain = isinstance(value, (str, bytes, int, float, type(None), list, tuple, dict))
    text = repr(value) if is_plain else ""
    return text if 0 < len(text) <= 60 else f"of type {type(value).__name__}"


def _choices(annotation: Any) -> list[str]:
    """What a field takes, in words; one entry for each alternative."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return [repr(value) for value in arguments]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return [choice for part in arguments for choice in _choices(part)]
    words = {int: ["an int"], float: ["a float"], bool: ["True", "False"], type(None): ["None"]}
    if annotation in words:
        return words[annotation]
    if not isinstance(annotation, type):
        return ["a callable"]
    if issubclass(annotation, Enum):
        return [str(member) for member in annotation]
    return [f"an {annotation.__name__} object"]


def either(choices: Sequence[str]) -> str:
    """``a, b or c``"""
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def default_remedy(owner: type, name: str) -> str:
    """What to pass instead: the default, or something of the kind asked for."""
    default = next(field.default for field in dataclasses.fields(owner) if field.name == name)
    if default is dataclasses.MISSING:
        return "It has no default."
    is_enum = isinstance(default, Enum)
    return f"The default is {default if is_enum else repr(default)}."


def _describe(cls: type, value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
    try:
        return handler(value)
    except ValidationError:
        name = str(info.field_name)
        # A recipe may allow fewer formats than its annotation.
        formats = getattr(cls, "_formats", {}).get(name, ())
        choices = [str(member) for member in formats] or _choices(typing.get_type_hints(cls)[name])
        raise ValueError(
            f"{cls.__name__}: {name} is {received(value)}; {either(choices)} is required. "
            f"{default_remedy(cls, name)}"
        ) from None


def described_fields() -> Any:
    """Class attribute of a pydantic dataclass that gives its refusals this form."""
    return field_validator("*", mode="wrap")(_describe)
