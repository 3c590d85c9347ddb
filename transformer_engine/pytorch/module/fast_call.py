# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules that are called in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..cpp_extensions import steps


class _Shared:
    """A process group on the way into a copy, which shares it; pickles leave it behind."""

    def __init__(self, group: Any = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shared, ()


class FastCallModule(torch.nn.Module):
    """Calls go straight to ``forward`` unless a hook or a tracer asks for more.

    Everything else is as in ``torch.nn.Module``, whose ``__call__`` subclasses, torch.compile and
    ``module.__call__`` find. Copies share process groups; a module that comes out of a pickle has
    none, as in a process that has not made them yet.
    """

    __call__: Callable[..., Any] = torch.nn.Module.__call__

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        steps.enable_fast_call(cls)

    def __getstate__(self) -> dict[str, Any]:
        groups = (torch.distributed.ProcessGroup,) if torch.distributed.is_available() else ()
        return {
            name: _Shared(value) if isinstance(value, groups) else value
            for name, value in self.__dict__.items()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(
            {
                name: value.group if isinstance(value, _Shared) else value
                for name, value in state.items()
            }
        )
