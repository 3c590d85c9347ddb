# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The modules' formulas composed of torch's operators.

A native step reads memory, so it cannot serve function transforms (torch.func, forward-mode AD),
tracers, fake and meta tensors, DTensors and other classes that override operators. For those, and
outside quantized regions, a module runs its formula from here; every operator is then torch's own.
Norms and activations are computed in FP32 and rounded once, as the native steps do; a result may
differ from theirs by the rounding of sums in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "activation",
    "amp_dtype",
    "check_device",
    "flagged",
    "linear",
    "module_norm",
    "norm",
    "norm_names",
    "refuse_weight_gradient_options",
    "stacked_bias",
]


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _tanh_gelu,
    "qgelu": _quick_gelu,
    "relu": F.relu,
    "srelu": _squared_relu,
    "silu": F.silu,
}
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "geglu": _tanh_gelu,
    "qgeglu": _quick_gelu,
    "reglu": F.relu,
    "sreglu": _squared_relu,
    "swiglu": F.silu,
}


def activation(name: str, x: Tensor, params: dict[str, float]) -> Tensor:
    """`LayerNormMLP`'s activation of x, in FP32, in the dtype of x.

    A gated one acts on the first half of the last dimension and multiplies by the second.
    """
    wide = x.float()
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](wide).to(x.dtype)
    gate, factor = wide.chunk(2, dim=-1)
    if name in _GATES:
        return (_GATES[name](gate) * factor).to(x.dtype)
    limit = params.get("limit", 7.0)
    gate = gate.clamp(max=limit)
    factor = factor.clamp(-limit, limit) + params.get("glu_linear_offset", 1.0)
    return (gate * torch.sigmoid(params.get("alpha", 1.702) * gate) * factor).to(x.dtype)


# Kinds of devices with torch.autocast; asked here, as torch 2.11 cannot trace the question.
AUTOCAST_KINDS = tuple(kind for kind in ("cpu", "cuda") if torch.amp.is_autocast_available(kind))


def amp_dtype(x: Tensor) -> torch.dtype | None:
    """What torch.autocast prescribes on the device of x, or None outside it."""
    kind = x.device.type
    if kind not in AUTOCAST_KINDS or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def check_device(label: str, x: Tensor, what: str, name: str, parameter: Tensor) -> None:
    """Raise RuntimeError for an input (called `what`) and a parameter on two devices."""
    if parameter.device == x.device:
        return
    remedy = (
        "Move the input, or make it, there"
        if x.is_meta
        else "Move one of them with .to(), or call reset_parameters() of a module built on meta"
    )
    raise RuntimeError(
        f"{label}: {what} is on {x.device} and parameter {name} is on {parameter.device}; they "
        f"must be on one device. {remedy}."
    )


def norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool,
    dtype: torch.dtype,
) -> Tensor:
    """LayerNorm, or RMSNorm when bias is None, over the dimensions of weight; result in dtype."""
    is_amp = amp_dtype(x) is not None
    with torch.autocast(x.device.type, enabled=False) if is_amp else nullcontext():
        gamma = weight.float()
        if zero_centered_gamma:
            gamma = gamma + 1.0
        if bias is None:
            result = F.rms_norm(x.float(), weight.shape, gamma, eps)
        else:
            result = F.layer_norm(x.float(), weight.shape, gamma, bias.float(), eps)
        return result.to(dtype)


def linear(
    module: Any, x: Tensor, weight_names: Sequence[str], bias_names: Sequence[str], with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """(x W^T, plus b where `with_bias`; b or None) of the module's stacked weights and biases.

    Raises
    ------
    ValueError
        When the last dimension of x is not the weights'.
    TypeError
        For unequal dtypes outside torch.autocast.
    NotImplementedError
        When weight gradients should bypass autograd.
    """
    label = f"{type(module).__name__}.forward"
    weights = [getattr(module, name) for name in weight_names]
    refuse_weight_gradient_options(module, weights)
    check_device(label, x, "inp", weight_names[0], weights[0])
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if x.dim() < 1 or x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"{label}: inp has shape {tuple(x.shape)}; a last dimension of {weight.shape[-1]} is "
            "required."
        )
    if x.dtype != weight.dtype and amp_dtype(x) is None:
        raise TypeError(
            f"{label}: parameter {weight_names[0]} has dtype {weight.dtype} and the input "
            f"{x.dtype}; they must be equal. Cast one of them, or use torch.autocast."
        )
    bias = stacked_bias(module, bias_names, weight.shape[0])
    # Cast here: torch.autocast does not reach into every transform.
    dtype = amp_dtype(x) or x.dtype
    added = bias.to(dtype) if with_bias and bias is not None else None
    return F.linear(x.to(dtype), weight.to(dtype), added), bias


def stacked_bias(module: Any, names: Sequence[str], rows: int) -> Tensor | None:
    """The biases as one [rows], or None where they were taken away after construction."""
    parts = [getattr(module, name) for name in names]
    if not parts or any(part is None for part in parts):
        return None
    bias: Tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
    return bias if bias.numel() == rows else None


def norm_names(module: Any) -> list[str]:
    """Parameters of the norm in front of a fused module's first linear layer."""
    names = ["layer_norm_weight", "layer_norm_bias"]
    return names[:1] if module.layer_norm_bias is None else names


def module_norm(module: Any, x: Tensor) -> Tensor:
    """The norm in front of a fused module's first linear layer."""
    weight = module.layer_norm_weight
    check_device(f"{type(module).__name__}.forward", x, "inp", "layer_norm_weight", weight)
    return norm(
        x,
        weight,
        module.layer_norm_bias,
        eps=module.eps,
        zero_centered_gamma=module.zero_centered_gamma,
        dtype=amp_dtype(x) or x.dtype,
    )


def flagged(output: Tensor, *further: tuple[bool, Tensor | None]) -> Any:
    """output, or a tuple of it and each tensor whose flag is set."""
    extra = tuple(tensor for is_returned, tensor in further if is_returned)
    return (output, *extra) if extra else output


def refuse_weight_gradient_options(module: Any, weights: Sequence[Tensor]) -> None:
    """NotImplementedError when weight gradients should bypass autograd."""
    wants = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
    for option in ("fuse_wgrad_accumulation", "delay_wgrad_compute"):
        if wants and getattr(module, option, False):
            raise NotImplementedError(
                f"{type(module).__name__}.forward: {option} is True in a call that is traced or "
                "transformed; autograd is then the only way of weight gradients. Build the module "
                f"with {option}=False for this."
            )
