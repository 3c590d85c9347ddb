# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules that are called in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..cpp_extensions import steps


class FastCallModule(torch.nn.Module):
    """Calls go straight to ``forward`` unless a hook or a tracer asks for more.

    Everything else is as in ``torch.nn.Module``, whose ``__call__`` subclasses, torch.compile and
    ``module.__call__`` find.
    """

    __call__: Callable[..., Any] = torch.nn.Module.__call__

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        steps.enable_fast_call(cls)
