# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear, LayerNormLinear and LayerNormMLP written out in float64, forward and backward.

Independent of the library: formulas and number formats only. Values carry their error bound
(`helpers.bounded`), and each GEMM operand passes a `Quantize` function of its slot, so that the
same formulas serve high precision and every recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .bounded import Bounded, Function, joined
from .formats import E4M3, E5M2, FloatFormat
from .quantizers import reference_codes, reference_scale, reference_values

# (slot, operand as the module holds it) -> operand as the GEMM reads it. Slots: "input", "weight",
# "grad_output" of the first GEMM; "input2", ... of the second.
Quantize = Callable[[str, Bounded], Bounded]


def unquantized(_slot: str, operand: Bounded) -> Bounded:
    """High precision."""
    return operand


def cast_fp8(operand: Bounded, scale: float, fmt: FloatFormat) -> Bounded:
    """Values of the codes of an operand, cast with a scale known exactly."""
    scale_inv = float(torch.tensor(1.0) / torch.tensor(scale, dtype=torch.float32))
    cast = operand.apply(lambda x: reference_values(reference_codes(x, scale, fmt), scale_inv, fmt))
    return Bounded(cast.value, cast.error, is_fp8=True)


def with_scales(scales: Mapping[str, float]) -> Quantize:
    """Delayed scaling: slot -> scale. Gradients are E5M2, the rest E4M3."""

    def quantize(slot: str, operand: Bounded) -> Bounded:
        return cast_fp8(operand, scales[slot], E5M2 if slot.startswith("grad") else E4M3)

    return quantize


def with_current_scaling(slot: str, operand: Bounded) -> Bounded:
    """Current scaling: the scale follows from the operand."""
    fmt = E5M2 if slot.startswith("grad") else E4M3
    if operand.value.numel() == 0:
        return operand
    index = int(operand.value.abs().argmax())
    amax = float(operand.value.abs().max())
    off = float(operand.magnitude.max()) - amax
    if off == 0.0:
        return cast_fp8(operand, reference_scale(amax, fmt), fmt)
    # An amax that is off moves all codes: by its relative error, and by one step where an element
    # falls on the other side of a rounding boundary.
    assert operand.value.flatten()[index].abs() == amax
    moved = Bounded(operand.value, operand.error + operand.value.abs() * (off / amax))
    cast = cast_fp8(moved, reference_scale(amax, fmt), fmt)
    return Bounded(cast.value, cast.error + cast.value.abs() * (off / amax), is_fp8=True)


@dataclass(frozen=True, slots=True)
class Activation:
    """f(first half) * g(second half); without g, f of everything."""

    f: Function
    g: Function | None = None


def _sigmoid_times(alpha: float) -> Function:
    return lambda x: x * torch.sigmoid(alpha * x)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    # 0.5 (1 + tanh u) as sigmoid(2u)
    return x * torch.sigmoid(2 * 0.79788456 * x * (1 + 0.044715 * x * x))


def _srelu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) ** 2


def clamped_swiglu(
    limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0
) -> Activation:
    """Swish of the capped first half, times the clamped second half plus an offset."""
    return Activation(
        lambda a: _sigmoid_times(alpha)(a.clamp(max=limit)),
        lambda b: b.clamp(-limit, limit) + glu_linear_offset,
    )


def _itself(x: torch.Tensor) -> torch.Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(_gelu),
    "qgelu": Activation(_sigmoid_times(1.702)),
    "relu": Activation(torch.relu),
    "srelu": Activation(_srelu),
    "silu": Activation(_sigmoid_times(1.0)),
    "glu": Activation(torch.sigmoid, _itself),
    "geglu": Activation(_gelu, _itself),
    "qgeglu": Activation(_sigmoid_times(1.702), _itself),
    "reglu": Activation(torch.relu, _itself),
    "sreglu": Activation(_srelu, _itself),
    "swiglu": Activation(_sigmoid_times(1.0), _itself),
    "clamped_swiglu": clamped_swiglu(),
}


def _derivative(function: Function) -> Function:
    def slope(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            result = function(leaf)
            if not result.requires_grad:
                return torch.zeros_like(x)
            (gradient,) = torch.autograd.grad(result.sum(), leaf)
        return gradient.detach()

    return slope


def _evaluation(function: Function) -> Function:
    # The sigmoid's argument carries up to 6 roundings, which reach the result at most times
    # |argument| (1 + |x|)^2; 8 more roundings for exp, division and products.
    return lambda x: 16 * (function(x).abs() + (1 + x.abs()) ** 2)


def activation_forward(activation: Activation, x: Bounded) -> Bounded:
    """y of `Activation`."""
    if activation.g is None:
        return x.apply(activation.f, _evaluation(activation.f))
    a, b = x.halves()
    gate = b.apply(activation.g)._computed()
    return a.apply(activation.f, _evaluation(activation.f)) * gate


def activation_backward(activation: Activation, grad: Bounded, x: Bounded) -> Bounded:
    """Gradient of x for the gradient of y."""
    slope = _derivative(activation.f)
    if activation.g is None:
        return grad * x.apply(slope, _evaluation(slope))
    a, b = x.halves()
    gate = b.apply(activation.g)._computed()
    grad_a = grad * (a.apply(slope, _evaluation(slope)) * gate)
    grad_b = grad * a.apply(activation.f, _evaluation(activation.f))
    return joined(grad_a, grad_b * b.apply(_derivative(activation.g)))


@dataclass(slots=True)
class Norm:
    """LayerNorm (or RMSNorm, where beta is None) over the last axis, statistics in FP32."""

    gamma: Bounded
    beta: Bounded | None
    eps: float = 1e-5
    zero_centered: bool = False
    x_hat: Bounded = field(init=False)
    rstd: Bounded = field(init=False)

    def _gamma(self) -> Bounded:
        one = Bounded.exact(torch.ones_like(self.gamma.value))
        return self.gamma + one if self.zero_centered else self.gamma

    def forward(self, x: Bounded) -> Bounded:
        """[..., hidden]"""
        centered = x - x.mean() if self.beta is not None else x
        variance = (centered * centered).mean()
        # 4 roundings: the sum with eps, the root (its half), the division.
        self.rstd = variance.apply(
            lambda v: (v.clamp(min=0) + self.eps).rsqrt(),
            lambda v: 4 * (v + self.eps).rsqrt(),
        )
        self.x_hat = centered * self.rstd
        y = self.x_hat * self._gamma()
        return y + self.beta if self.beta is not None else y

    def backward(self, grad: Bounded) -> tuple[Bounded, Bounded, Bounded | None]:
        """Gradients of x, gamma and beta for rows of gradients [m, hidden]."""
        scaled = grad * self._gamma()
        inner = scaled - self.x_hat * (scaled * self.x_hat).mean()
        if self.beta is not None:
            inner = inner - scaled.mean()
        grad_gamma = (grad * self.x_hat).sum(0)
        return inner * self.rstd, grad_gamma, grad.sum(0) if self.beta is not None else None


@dataclass(slots=True)
class LinearLayer:
    """One linear layer and what its backward needs."""

    weight: Bounded  # [out, in]
    bias: Bounded | None
    dtype: torch.dtype  # of activations
    quantize: Quantize = unquantized
    suffix: str = ""
    operands: dict[str, Bounded] = field(default_factory=dict)

    def _operand(self, slot: str, value: Bounded) -> Bounded:
        self.operands[slot] = self.quantize(slot + self.suffix, value)
        return self.operands[slot]

    def forward(self, x: Bounded) -> Bounded:
        """x: [m, in]"""
        y = self._operand("input", x) @ self._operand("weight", self.weight).T
        if self.bias is not None:
            y = y + self.bias.rounded(self.dtype)
        return y.rounded(self.dtype)

    def backward(
        self, grad: Bounded, addend: Bounded | None = None
    ) -> tuple[Bounded, dict[str, Bounded]]:
        """(gradient of x, plus `addend`; gradients of "weight" and "bias"), grad: [m, out]"""
        operand = self._operand("grad_output", grad)
        grad_x = operand @ self.operands["weight"]
        if addend is not None:
            grad_x = grad_x + addend
        gradients = {"weight": operand.T @ self.operands["input"]}
        if self.bias is not None:
            gradients["bias"] = grad.sum(0)
        return grad_x.rounded(self.dtype), gradients


Results = dict[str, Bounded]


def linear(
    layer: LinearLayer, x: torch.Tensor, grad: torch.Tensor, norm: Norm | None = None
) -> Results:
    """(Norm and) linear layer: "output", "inp", "weight", "bias", and the norm's.

    x: [m, in], grad: [m, out]. "layernorm_output" too with a norm.
    """
    results: Results = {}
    source = Bounded.exact(x)
    if norm is not None:
        source = norm.forward(source).rounded(layer.dtype)
        results["layernorm_output"] = source
    results["output"] = layer.forward(source)
    grad_x, gradients = layer.backward(Bounded.exact(grad))
    results.update(gradients)
    if norm is not None:
        grad_x, results["layer_norm_weight"], grad_beta = norm.backward(grad_x)
        if grad_beta is not None:
            results["layer_norm_bias"] = grad_beta
    results["inp"] = grad_x
    return results


@dataclass(slots=True)
class MLP:
    """Norm, linear, activation, linear."""

    norm: Norm
    fc1: LinearLayer
    activation: Activation
    fc2: LinearLayer

    def run(self, x: torch.Tensor, grad: torch.Tensor) -> Results:
        """x, grad: [m, hidden]. Names as the module's parameters."""
        dtype = self.fc1.dtype
        normalized = self.norm.forward(Bounded.exact(x)).rounded(dtype)
        pre_activation = self.fc1.forward(normalized)
        activated = activation_forward(self.activation, pre_activation).rounded(dtype)
        results: Results = {
            "layernorm_output": normalized,
            "output": self.fc2.forward(activated),
        }
        grad_activated, gradients = self.fc2.backward(Bounded.exact(grad))
        results.update({f"fc2_{name}": value for name, value in gradients.items()})
        grad_pre = activation_backward(self.activation, grad_activated, pre_activation)
        grad_normalized, gradients = self.fc1.backward(grad_pre.rounded(dtype))
        results.update({f"fc1_{name}": value for name, value in gradients.items()})
        results["inp"], results["layer_norm_weight"], grad_beta = self.norm.backward(
            grad_normalized
        )
        if grad_beta is not None:
            results["layer_norm_bias"] = grad_beta
        return results
