# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A transformer layer composed of plain torch functions over a state dict, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


def _glu(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def gated(x: Tensor) -> Tensor:
        gate, linear = x.chunk(2, -1)
        return function(gate) * linear

    return gated


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _qgelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _srelu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _clamped_swiglu(x: Tensor) -> Tensor:
    gate, linear = x.chunk(2, -1)
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (linear.clamp(-7.0, 7.0) + 1.0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "geglu": _glu(_gelu),
    "glu": _glu(torch.sigmoid),
    "qgelu": _qgelu,
    "qgeglu": _glu(_qgelu),
    "relu": F.relu,
    "reglu": _glu(F.relu),
    "srelu": _srelu,
    "sreglu": _glu(_srelu),
    "silu": F.silu,
    "swiglu": _glu(F.silu),
    "clamped_swiglu": _clamped_swiglu,
}


@dataclass(frozen=True)
class LayerSpec:
    """The options of a layer that change its formula."""

    heads: int = 4
    groups: int = 4
    head_size: int = 4
    activation: str = "gelu"
    normalization: str = "LayerNorm"
    zero_centered_gamma: bool = False
    output_layernorm: bool = False
    residual_post_norm: bool = False
    parallel_mlp: bool = False
    decoder: bool = False
    interleaved_qkv: bool = False
    qk_norm: str | None = None
    qk_norm_before_rope: bool = False
    rope_interleaved: bool = False
    learnable_softmax: bool = False
    batch_first: bool = False
    eps: float = 1e-5
    qk_eps: float = 1e-6


def _norm(spec: LayerSpec, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    weight = 1 + weight if spec.zero_centered_gamma else weight
    if spec.normalization == "LayerNorm":
        return F.layer_norm(x, x.shape[-1:], weight, bias, spec.eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.eps) * weight


def _split_weight(state: State, path: str, names: tuple[str, ...], kind: str) -> Tensor | None:
    """One parameter, or the parts `<name>_<kind>` stacked."""
    if f"{path}.{kind}" in state:
        return state[f"{path}.{kind}"]
    if f"{path}.{names[0]}_{kind}" not in state:
        return None
    return torch.cat([state[f"{path}.{name}_{kind}"] for name in names])


def _project(state: State, path: str, names: tuple[str, ...], x: Tensor) -> Tensor:
    weight, bias = (_split_weight(state, path, names, kind) for kind in ("weight", "bias"))
    assert weight is not None
    return F.linear(x, weight, bias)


def _to_heads(spec: LayerSpec, x: Tensor, repeats: tuple[int, ...]) -> list[Tensor]:
    """Channels to [.., heads, d], by the two row orders of the fused weight."""
    groups, size = spec.groups, spec.head_size
    if spec.interleaved_qkv:
        x = x.unflatten(-1, (groups, sum(repeats), size))
        starts = [sum(repeats[:i]) for i in range(len(repeats))]
        return [
            x[..., start : start + n, :].flatten(-3, -2)
            for start, n in zip(starts, repeats, strict=True)
        ]
    widths = [n * groups * size for n in repeats]
    return [part.unflatten(-1, (-1, size)) for part in x.split(widths, -1)]


def _qk_norm(spec: LayerSpec, state: State, path: str, x: Tensor) -> Tensor:
    if spec.qk_norm == "L2Normalization":
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + spec.qk_eps)
    weight = state[f"{path}.weight"]
    if spec.qk_norm == "LayerNorm":
        return F.layer_norm(x, x.shape[-1:], weight, state[f"{path}.bias"], spec.qk_eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.qk_eps) * weight


def _rope(spec: LayerSpec, x: Tensor, angles: Tensor) -> Tensor:
    """x [s, b, h, d], angles [s, 1, 1, d]."""
    if spec.rope_interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    else:
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    return x * angles.cos() + turned * angles.sin()


def _attention(
    spec: LayerSpec,
    state: State,
    path: str,
    x: Tensor,
    *,
    source: Tensor | None,
    hidden: Tensor,
    added: Tensor | float,
    angles: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attention over x [s, b, hidden]; returns its output and the normalized input."""
    kind = "query" if source is not None else "qkv"
    plain = "query_layer" if source is not None else "qkv"
    names = ("query",) if source is not None else ("query", "key", "value")
    where = f"{path}.layernorm_{kind}"
    normed = x
    if f"{where}.layer_norm_weight" in state:
        weight, bias = state[f"{where}.layer_norm_weight"], state.get(f"{where}.layer_norm_bias")
        normed = _norm(spec, x, weight, bias)
    else:
        where = f"{path}.{plain}"
    mixed = _project(state, where, names, normed)
    repeat = spec.heads // spec.groups
    if source is None:
        q, k, v = _to_heads(spec, mixed, (repeat, 1, 1))
    else:
        q = mixed.unflatten(-1, (spec.heads, spec.head_size))
        k, v = _to_heads(
            spec, _project(state, f"{path}.key_value", ("key", "value"), source), (1, 1)
        )
    steps = [lambda t, name: _rope(spec, t, angles)] if angles is not None else []
    if spec.qk_norm is not None:
        position = 0 if spec.qk_norm_before_rope else len(steps)
        steps.insert(position, lambda t, name: _qk_norm(spec, state, f"{path}.{name}", t))
    for step in steps:
        q, k = step(q, "q_norm"), step(k, "k_norm")
    k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    scores = torch.einsum("ibhd,jbhd->bhij", q, k) / spec.head_size**0.5 + added
    scores = scores.masked_fill(hidden, -torch.inf)
    if spec.learnable_softmax:
        sink = state[f"{path}.core_attention.softmax_offset"].view(1, -1, 1, 1)
        sink = sink.expand(*scores.shape[:3], 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    context = torch.einsum("bhij,jbhd->ibhd", weights, v).flatten(2)
    out = F.linear(context, state[f"{path}.proj.weight"], state.get(f"{path}.proj.bias"))
    return out, normed


def reference_layer(
    spec: LayerSpec,
    state: State,
    x: Tensor,
    *,
    hidden: Tensor,
    encoder_output: Tensor | None = None,
    cross_hidden: Tensor | None = None,
    added: Tensor | float = 0.0,
    angles: Tensor | None = None,
) -> Tensor:
    """The layer without dropout; x [s, b, hidden], masks True = masked out."""
    attended, normed = _attention(
        spec, state, "self_attention", x, source=None, hidden=hidden, added=added, angles=angles
    )

    def mlp(inp: Tensor) -> tuple[Tensor, Tensor]:
        path = "layernorm_mlp"
        weight, bias = state[f"{path}.layer_norm_weight"], state.get(f"{path}.layer_norm_bias")
        out_norm = _norm(spec, inp, weight, bias)
        inner = F.linear(out_norm, state[f"{path}.fc1_weight"], state.get(f"{path}.fc1_bias"))
        inner = ACTIVATIONS[spec.activation](inner)
        out = F.linear(inner, state[f"{path}.fc2_weight"], state.get(f"{path}.fc2_bias"))
        return out, out_norm

    if spec.parallel_mlp:
        return x + attended + mlp(x)[0]
    post = spec.residual_post_norm
    x = (normed if post and not spec.output_layernorm else x) + attended
    if spec.decoder:
        assert cross_hidden is not None
        attended, normed = _attention(
            spec,
            state,
            "inter_attention",
            x,
            source=encoder_output,
            hidden=cross_hidden,
            added=added,
            angles=None,
        )
        x = (normed if post else x) + attended
    transformed, normed = mlp(x)
    x = (normed if post else x) + transformed
    if spec.output_layernorm:
        x = _norm(spec, x, state["layernorm.weight"], state.get("layernorm.bias"))
    return x
