# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The modules with native steps, how tests run them, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import transformer_engine.pytorch as te

from . import module_reference as reference
from .bounded import Bounded
from .generators import random_tensor
from .module_reference import Quantize, Results, unquantized
from .tolerances import assert_identical, assert_within

IN, OUT, FFN = 24, 40, 56

FACTORIES: dict[str, Callable[..., torch.nn.Module]] = {
    "Linear": lambda **keywords: te.Linear(IN, OUT, **keywords),
    "LayerNormLinear": lambda **keywords: te.LayerNormLinear(IN, OUT, **keywords),
    "LayerNormMLP": lambda **keywords: te.LayerNormMLP(IN, FFN, **keywords),
    "LayerNorm": lambda **keywords: te.LayerNorm(IN, **_norm_keywords(keywords)),
    "RMSNorm": lambda **keywords: te.RMSNorm(IN, **_norm_keywords(keywords)),
}
KINDS = tuple(FACTORIES)
LINEAR_KINDS = KINDS[:3]  # those with GEMMs, hence with recipes


def _norm_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    if "params_dtype" in keywords:
        keywords["dtype"] = keywords.pop("params_dtype")
    return keywords


def make(kind: str, seed: int = 7, **keywords: Any) -> Any:
    """A module on the default device whose parameters all matter: no zeros and no ones."""
    module = FACTORIES[kind](device=torch.get_default_device(), **keywords)
    randomize(module, seed)
    return module


def randomize(module: torch.nn.Module, seed: int = 7) -> None:
    """Normally distributed parameters; norm weights around 1 (or 0 where they are centred)."""
    with torch.no_grad():
        for index, (name, parameter) in enumerate(module.named_parameters()):
            values = random_tensor(tuple(parameter.shape), seed=seed + index)
            is_norm_weight = name == "layer_norm_weight" or parameter.dim() == 1 == (
                name.endswith("weight")
            )
            if is_norm_weight and not getattr(module, "zero_centered_gamma", False):
                values = 1 + 0.25 * values
            parameter.copy_(0.5 * values)


def out_features(module: Any) -> int:
    """Size of the output's last axis."""
    return module.out_features if hasattr(module, "out_features") else IN


def make_input(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    """A leaf that wants a gradient; without sizes [6, IN]."""
    return random_tensor(shape or (6, IN), dtype=dtype, seed=seed).requires_grad_()


def run(
    module: Any, x: torch.Tensor, grad: torch.Tensor | None = None, **keywords: Any
) -> dict[str, torch.Tensor]:
    """One forward and backward: "output", "inp" and the parameters' gradients by name.

    `grad` is the gradient of the output; by default random, the same for the same shape.
    """
    module.zero_grad()
    x.grad = None
    result = module(x, **keywords)
    output = result[0] if isinstance(result, tuple) else result
    output.backward(output_gradient(output) if grad is None else grad)
    return collect(module, x, output)


def output_gradient(output: torch.Tensor, seed: int = 3) -> torch.Tensor:
    """A gradient for an output, the same for the same shape."""
    return random_tensor(tuple(output.shape), dtype=output.dtype, seed=seed)


def collect(module: Any, x: torch.Tensor, output: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a backward left behind."""
    found = {"output": output.detach()}
    if x.grad is not None:
        found["inp"] = x.grad
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad
    return found


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Fail unless both hold the same names and bits."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert_identical(actual[name], value, name)


def _bounded(tensor: torch.Tensor | None) -> Bounded | None:
    return None if tensor is None or tensor.numel() == 0 else Bounded.exact(tensor)


def _norm(module: Any, prefix: str = "layer_norm_") -> reference.Norm:
    beta = getattr(module, prefix + "bias", None)
    return reference.Norm(
        Bounded.exact(getattr(module, prefix + "weight")),
        _bounded(beta),
        eps=module.eps,
        zero_centered=module.zero_centered_gamma,
    )


def _layer(module: Any, prefix: str, **keywords: Any) -> reference.LinearLayer:
    return reference.LinearLayer(
        Bounded.exact(getattr(module, prefix + "weight")),
        _bounded(getattr(module, prefix + "bias")),
        **keywords,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and wait long for them on a busy machine."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@_one_thread()
def expected_results(
    module: Any,
    x: torch.Tensor,
    grad: torch.Tensor,
    *,
    quantize: Quantize = unquantized,
    dtype: torch.dtype | None = None,
) -> Results:
    """What `run` should give, from the float64 formulas; plus "layernorm_output".

    x and grad of any number of dimensions; `dtype` of the activations is by default x's.
    """
    dtype = dtype or x.dtype
    rows = x.detach().reshape(-1, x.shape[-1])
    grads = grad.detach().reshape(-1, grad.shape[-1])
    if isinstance(module, te.LayerNormMLP):
        params = module.activation_params or {}
        activation = (
            reference.clamped_swiglu(**params)
            if module.activation == "clamped_swiglu"
            else reference.ACTIVATIONS[module.activation]
        )
        results = reference.MLP(
            _norm(module),
            _layer(module, "fc1_", dtype=dtype, quantize=quantize),
            activation,
            _layer(module, "fc2_", dtype=dtype, quantize=quantize, suffix="2"),
        ).run(rows, grads)
    elif isinstance(module, (te.LayerNorm, te.RMSNorm)):
        norm = _norm(module, "")
        results = {"output": norm.forward(Bounded.exact(rows)).rounded(dtype)}
        results["inp"], results["weight"], grad_beta = norm.backward(Bounded.exact(grads))
        if grad_beta is not None:
            results["bias"] = grad_beta
    else:
        norm_or_none = _norm(module) if isinstance(module, te.LayerNormLinear) else None
        layer = _layer(module, "", dtype=dtype, quantize=quantize)
        results = reference.linear(layer, rows, grads, norm_or_none)
    for name in ("output", "layernorm_output", "inp"):
        if name in results:
            results[name] = results[name].reshape(*x.shape[:-1], results[name].shape[-1])
    return results


def assert_matches(actual: dict[str, torch.Tensor], expected: Results) -> None:
    """Fail unless every result is within its bound, rounded to the dtype it has."""
    for name, value in actual.items():
        bound = expected[name].rounded(value.dtype)
        assert_within(value, bound.value, bound.error, name)


def slot_scales(module: Any) -> dict[str, float]:
    """Delayed-scaling scales by the slot names of `helpers.module_reference`."""
    forward = module.fp8_meta["scaling_fwd"].scale.tolist()
    backward = module.fp8_meta["scaling_bwd"].scale.tolist()
    slots = {}
    for gemm in range(module.num_gemms):
        suffix = "2" if gemm else ""
        slots["input" + suffix] = forward[3 * gemm]
        slots["weight" + suffix] = forward[3 * gemm + 1]
        slots["grad_output" + suffix] = backward[2 * gemm]
    return slots


def recipe_state(module: Any) -> dict[str, torch.Tensor]:
    """Copies of the delayed-scaling buffers of both directions."""
    return {
        f"{key}.{name}": getattr(module.fp8_meta[key], name).clone()
        for key in ("scaling_fwd", "scaling_bwd")
        for name in ("scale", "amax_history")
    }
