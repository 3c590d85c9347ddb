# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A layer's results in FP32 arithmetic, on the values it had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .recorder import Call, floating_tensors, plain_copy
from .results import LayerError
from .statistics import error_of

__all__ = ["errors_of"]


def _widened(value: Any, leaves: dict[str, torch.Tensor], key: str) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    leaves[key] = value.float().requires_grad_()
    return leaves[key]


def _reference_of(call: Call) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, value) of the call's results in FP32 arithmetic: the module itself on FP32 copies."""
    module = call.module
    leaves: dict[str, torch.Tensor] = {}
    args = [_widened(value, leaves, f"argument {i}") for i, value in enumerate(call.args)]
    kwargs = {key: _widened(v, leaves, f"argument {key}") for key, v in call.kwargs.items()}
    originals = dict(module._parameters)
    try:
        for name, parameter in originals.items():
            if parameter is not None:
                values = _widened(plain_copy(parameter), leaves, f"grad {name}")
                module._parameters[name] = values
        outputs = floating_tensors(module.forward(*args, **kwargs))
    finally:
        module._parameters.update(originals)
    yield "output", outputs[0].detach()
    used = [index for index in call.grad_outputs if outputs[index].requires_grad]
    if not used:
        return
    gradients = torch.autograd.grad(
        [outputs[index] for index in used],
        list(leaves.values()),
        [call.grad_outputs[index].float() for index in used],
        allow_unused=True,
    )
    for key, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            yield key, gradient


def _error(call: Call, tensor: str, result: torch.Tensor, reference: torch.Tensor) -> LayerError:
    measures = error_of(reference, result)
    return LayerError(call.name, call.number, tensor, tuple(result.shape), *measures)


def errors_of(call: Call) -> list[LayerError]:
    found = []
    for key, reference in _reference_of(call):
        if key == "output":
            found.append(_error(call, key, call.outputs[0], reference))
            continue
        result = call.gradients.get(key)
        if result is not None:
            is_input = key.startswith("argument")
            found.append(_error(call, "grad_input" if is_input else key, result, reference))
    return found
