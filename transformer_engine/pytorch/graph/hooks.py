# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hooks that are called around warm-up and capture, outside of what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..arguments import received
from .arguments import OWNER


class CaptureHooks:
    """The capture-time hooks of one module, called as `torch.nn.Module` calls its hooks.

    Parameters
    ----------
    module : torch.nn.Module
        First argument of every hook.
    hooks : dict
        Kind -> number or name -> hook; ``forward_pre_hooks_with_kwargs`` and
        ``forward_hooks_with_kwargs`` name those that take keyword arguments, as the attributes of
        `torch.nn.Module` do.
    """

    def __init__(self, module: torch.nn.Module, hooks: Mapping[str, Any]) -> None:
        self._module, self._hooks = module, hooks

    def __bool__(self) -> bool:
        return any(self._hooks.values())

    def _call(self, kind: str, *arguments: Any, keywords: Any = None) -> None:
        with_keywords = self._hooks.get(f"{kind}_with_kwargs", {})
        for name, hook in self._hooks.get(kind, {}).items():
            given = arguments
            if keywords is not None and with_keywords.get(name):
                given = (arguments[0], keywords, *arguments[1:])
            result = hook(self._module, *given)
            if result is not None:
                raise RuntimeError(
                    f"{OWNER}: hook {name!r} of capture_time_hooks' {kind} returned "
                    f"{received(result)}; None is required, as a hook outside of a graph cannot "
                    "change what is inside."
                )

    def before_forward(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Pre-forward hooks: (module, args[, keywords])."""
        self._call("forward_pre_hooks", args, keywords=keywords)

    def after_forward(
        self, args: tuple[Any, ...], keywords: Mapping[str, Any], output: Any
    ) -> None:
        """Forward hooks: (module, args[, keywords], output)."""
        self._call("forward_hooks", args, output, keywords=keywords)

    def before_backward(self, grad_output: tuple[Any, ...]) -> None:
        """Pre-backward hooks: (module, grad_output)."""
        self._call("backward_pre_hooks", grad_output)

    def after_backward(self, grad_input: tuple[Any, ...], grad_output: tuple[Any, ...]) -> None:
        """Backward hooks: (module, grad_input, grad_output)."""
        self._call("backward_hooks", grad_input, grad_output)
