# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""float(), half() and bfloat16() of torch.nn.Module on modules with quantized parameters.

torch would dequantize a parameter to the new dtype and quantize it again. For a quantized parameter
only the nominal dtype is to change, the bytes stay. Ordinary parameters and buffers are cast as
ever: a module without quantized parameters behaves exactly as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _module_cast(name: str, dtype: torch.dtype) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def cast(self: torch.nn.Module) -> torch.nn.Module:
        return self._apply(lambda tensor: _cast(tensor, dtype))

    cast.__name__ = name
    cast.__qualname__ = f"Module.{name}"
    cast.__doc__ = getattr(torch.nn.Module, name).__doc__
    return cast


def install() -> None:
    """Replace the three methods of torch.nn.Module."""
    for name, dtype in (
        ("float", torch.float32),
        ("half", torch.float16),
        ("bfloat16", torch.bfloat16),
    ):
        setattr(torch.nn.Module, name, _module_cast(name, dtype))
