# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Classes of formats whose kernels are not part of this version: names without instances."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

_WORKING_RECIPES = "DelayedScaling and Float8CurrentScaling"
_Class = TypeVar("_Class", bound=type)


def unavailable(cls: _Class) -> _Class:
    """Decorate a class so that constructing it is refused; isinstance and imports work."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{cls.__name__}: this number format is not part of this version; the recipes "
            f"{_WORKING_RECIPES} work. Use one of them."
        )

    cls.__new__ = refuse  # type: ignore[assignment]
    return cls
