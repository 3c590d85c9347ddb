# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all recipes share: family predicates, one-line text, caches that follow assignments."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ArgsKwargs

from ..environment import read_text
from .field_errors import default_remedy, either, received
from .formats import Format, QParams

BackwardOverride = Literal["high_precision", "dequantized"]
BACKWARD_OVERRIDE_DEFAULT: Any = read_text("NVTE_BACKWARD_OVERRIDE") or None

# Derived from the attributes, so any assignment drops them; never pickled or copied.
_CACHES = ("_cached_repr", "_native")
# Set by an assignment until the fields were checked; copies inherit it.
_UNCHECKED = "_has_unchecked_fields"


class Recipe:
    """Base of all recipes: which format each tensor is quantized to, and how.

    The predicates are class methods and test by subclass, so that they can be asked of a class
    or an instance, and a user's subclass keeps its family. Recipes compare by value and are not
    hashable. Attributes may be assigned after construction; they are validated when the recipe is
    next used (`check_assigned_fields`).
    """

    # The native recipe object made from this one; None until it is needed. Owned by the native
    # layer. An instance attribute of the same name shadows this default.
    _native: ClassVar[Any] = None
    _cached_repr: ClassVar[str | None] = None
    # Format fields whose recipe cannot use every format.
    _formats: ClassVar[Mapping[str, tuple[Format, ...]]] = {}

    @classmethod
    def _family(cls) -> str:
        return ""

    @classmethod
    def nvfp4(cls) -> bool:
        """Whether this is NVFP4 block scaling."""
        return cls._family() == "nvfp4"

    @classmethod
    def mxfp8(cls) -> bool:
        """Whether this is MXFP8 block scaling."""
        return cls._family() == "mxfp8"

    @classmethod
    def delayed(cls) -> bool:
        """Whether this is delayed scaling."""
        return cls._family() == "delayed"

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """Whether this is per-tensor current scaling."""
        return cls._family() == "float8_current_scaling"

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """Whether a tensor has one scale: delayed or current scaling."""
        return cls.delayed() or cls.float8_current_scaling()

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """Whether this is FP8 with blocks of 128."""
        return cls._family() == "float8_block_scaling"

    @classmethod
    def custom(cls) -> bool:
        """Whether a user's factory makes the quantizers."""
        return cls._family() == "custom"

    def check_assigned_fields(self) -> None:
        """Validate what was assigned since construction as the constructor would.

        Values that it converts without loss are converted.

        Raises
        ------
        ValueError
            For a field of the wrong type or outside its range.
        """
        if _UNCHECKED not in self.__dict__:
            return
        validator = getattr(type(self), "__pydantic_validator__", None)
        if validator is not None:
            names = type(self).__pydantic_fields__  # type: ignore[attr-defined]
            values = {name: getattr(self, name) for name in names}
            converted = copy.copy(self)  # with what a derived class's checks may read
            try:
                validator.validate_python(ArgsKwargs((), values), self_instance=converted)
            except ValidationError as error:
                details = error.errors()[0]
                reason = details.get("ctx", {}).get("error")
                text = f"{type(self).__name__}: {details['msg']}" if reason is None else str(reason)
                raise ValueError(text) from None
            self.__dict__.update({name: getattr(converted, name) for name in names})
        self._check_quantization_params()
        self._drop_caches()
        self.__dict__.pop(_UNCHECKED)

    def _check_quantization_params(self) -> None:
        for name, value in self.__dict__.items():
            if "_quant_" in name and not isinstance(value, QParams):
                raise ValueError(
                    f"{type(self).__name__}: {name} is {received(value)}; a QParams object is "
                    "required. Delete the attribute for the default."
                )

    def _drop_caches(self) -> None:
        for name in _CACHES:
            self.__dict__.pop(name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name not in _CACHES:
            self._drop_caches()
            self.__dict__[_UNCHECKED] = True

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._drop_caches()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _CACHES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        # Every field appears: equal text must mean equal behaviour, because delayed scaling
        # groups modules by it.
        if self._cached_repr is None:
            parts = [f"recipe_type={type(self).__name__}"]
            if dataclasses.is_dataclass(self):
                for field in dataclasses.fields(self):
                    parts.append(f"{field.name}={_short_text(getattr(self, field.name))}")
            self._cached_repr = ", ".join(parts)  # type: ignore[misc]  # shadows the default
        return self._cached_repr


def _short_text(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, str) else repr(value)


_RecipeT = TypeVar("_RecipeT", bound=Recipe)


class DerivedParams(Generic[_RecipeT]):
    """QParams that follow a recipe's switches, also when those are assigned later.

    Read from the class, it gives the parameters of a default recipe. An assignment to the class
    or to an instance replaces it there.
    """

    def __init__(self, default: QParams, build: Callable[[_RecipeT], QParams]) -> None:
        self._default = default
        self._build = build

    def __get__(self, instance: _RecipeT | None, owner: type[_RecipeT]) -> QParams:
        return self._default if instance is None else self._build(instance)


def check_formats(recipe: Recipe) -> None:
    """Raise ValueError unless each format argument is one of those the recipe can use."""
    for name, allowed in recipe._formats.items():
        value = getattr(recipe, name)
        if value not in allowed:
            raise ValueError(
                f"{type(recipe).__name__}: {name} is {value}; "
                f"{either([str(choice) for choice in allowed])} is required. "
                f"{default_remedy(type(recipe), name)}"
            )


def check_at_least_1(recipe: Recipe, name: str) -> None:
    """Raise ValueError for a count below 1."""
    if getattr(recipe, name) < 1:
        raise ValueError(
            f"{type(recipe).__name__}: {name} is {getattr(recipe, name)}; at least 1 is required. "
            f"{default_remedy(type(recipe), name)}"
        )
