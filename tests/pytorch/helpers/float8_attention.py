# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 attention head by head in float64, with the error that FP32 arithmetic may add.

Independent of the library: pairs are visible by `AttentionCase`, codes are those of `formats`.
Where an error interval reaches over the border between two codes, both count as right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .attention import AttentionCase
from .bounded import Bounded
from .formats import E4M3, E5M2, FloatFormat, decode_table, encode_reference
from .tolerances import assert_within

_EXP_ULPS = 4.0  # of torch's vectorised exponential and logarithm, with room


@dataclass(slots=True)
class TensorFormat:
    """How a tensor is rounded: a scale known beforehand, or by its own amax; None: not at all."""

    fmt: FloatFormat | None
    scale: float | None = None

    def round(self, x: Bounded, amax: float | None = None) -> Bounded:
        """The values of the codes."""
        fmt = self.fmt
        if fmt is None:
            return x
        scale = self.scale
        if scale is None:
            assert amax is not None
            scale = float(torch.tensor(fmt.max_value).float() / torch.tensor(amax).float())
        table = decode_table(fmt)
        scaled = x * Bounded.exact(torch.tensor(scale))
        codes = scaled.apply(lambda values: table[encode_reference(values, fmt).long()])
        # The inverse is a rounded FP32 number itself.
        return codes * Bounded.exact(1.0 / torch.tensor(scale).float())


@dataclass(slots=True)
class Formats:
    """Of every tensor of FP8 attention."""

    qkv: TensorFormat
    s: TensorFormat
    o: TensorFormat
    do: TensorFormat
    dp: TensorFormat
    dqkv: TensorFormat
    keeps_output: bool = False  # delta reads the output before its rounding

    @staticmethod
    def delayed(forward: list[float], backward: list[float], is_hybrid: bool = True) -> Formats:
        """With the scales of (QKV, O, S) and (dQKV, dO, dP)."""
        qkv, o, s = (TensorFormat(E4M3, scale) for scale in forward)
        gradients = E5M2 if is_hybrid else E4M3
        dqkv, do, dp = (TensorFormat(gradients, scale) for scale in backward)
        return Formats(qkv, s, o, do, dp, dqkv)

    @staticmethod
    def current(s: float, dp: float) -> Formats:
        """With the delayed scales of S and dP."""
        none = TensorFormat(None)
        return Formats(
            TensorFormat(E4M3), TensorFormat(E4M3, s), none,
            TensorFormat(E5M2), TensorFormat(E5M2, dp), none, keeps_output=True,
        )  # fmt: skip


@dataclass(slots=True)
class Float8AttentionResult:
    """What the reference computes; tensors in [b, s, heads, d], amaxes of S, O, dP, dQKV."""

    out: Bounded
    gradients: dict[str, Bounded]
    amax: dict[str, Bounded] = field(default_factory=dict)


def _stack(heads: list[list[Bounded]]) -> Bounded:
    """``[b][h]`` matrices to [b, s, heads, d]."""

    def joined(name: str) -> torch.Tensor:
        return torch.stack([torch.stack([getattr(x, name) for x in row], 1) for row in heads])

    return Bounded(joined("value"), joined("error"))


def _largest(parts: list[Bounded]) -> Bounded:
    """The largest magnitude and its error."""
    value = max(float(x.value.abs().max()) for x in parts)
    reach = max(float(x.magnitude.max()) for x in parts)
    return Bounded(torch.tensor(value).double(), torch.tensor(reach - value).double())


def _probabilities(
    case: AttentionCase, scores: Bounded, visible: torch.Tensor, head: int
) -> tuple[Bounded, Bounded]:
    """Probabilities and the logarithm of their denominators."""
    largest = torch.where(visible, scores.value, -torch.inf).amax(-1, keepdim=True)
    top = Bounded.exact(torch.where(largest.isfinite(), largest, 0.0))
    shown = Bounded.exact(visible.double())
    safe = Bounded(torch.where(visible, (scores - top).value, 0.0), (scores - top).error)
    total = (safe.apply(torch.exp, lambda x: _EXP_ULPS * x.exp()) * shown).sum(-1, keepdim=True)
    sink = {"vanilla": None, "off-by-one": 0.0}.get(case.softmax_type, "learnable")
    if sink is not None:
        offset = 0.0 if case.offset is None else float(case.offset[head])
        shifted = Bounded.exact(torch.tensor(offset).double()) - top
        total = total + shifted.apply(torch.exp, lambda x: _EXP_ULPS * x.exp())
    total = Bounded(torch.where(total.value > 0, total.value, 1.0), total.error)
    log_sums = total.apply(torch.log, lambda x: _EXP_ULPS * (1 + x.log().abs())) + top
    exponent = scores - log_sums
    exponent = Bounded(torch.where(visible, exponent.value, 0.0), exponent.error)
    return exponent.apply(torch.exp, lambda x: _EXP_ULPS * x.exp()) * shown, log_sums


def reference_float8_attention(  # noqa: PLR0915 - the rule, line by line
    case: AttentionCase,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    grad: torch.Tensor,
    formats: Formats,
    *,
    dtype: torch.dtype,
    kept: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> Float8AttentionResult:
    """Forward and backward.

    Parameters
    ----------
    qkv : three tensors in [b, s, heads, d], zeros in padding.
    grad : torch.Tensor
        Of the output, [b, s_q, heads, d_v].
    kept : torch.Tensor, optional
        Which probabilities dropout keeps, [b, h, s_q, s_kv].
    """
    batch, repeat = len(case.lengths_q), case.heads // case.groups
    visible, added = case.visible(), case.added()
    scale = Bounded.exact(torch.tensor(case.scale).double())
    amax = max(float(x.abs().max()) for x in qkv)
    q8, k8, v8 = (formats.qkv.round(Bounded.exact(x), amax) for x in qkv)
    do8 = formats.do.round(Bounded.exact(grad), float(grad.abs().max()))

    def head(x: Bounded, b: int, h: int) -> Bounded:
        return Bounded(x.value[b, :, h], x.error[b, :, h])

    out: list[list[Bounded]] = []
    saved: dict[tuple[int, int], tuple[Bounded, ...]] = {}
    weights_seen, outputs_seen = [], []
    for b in range(batch):
        out.append([])
        for h in range(case.heads):
            q, k, v = head(q8, b, h), head(k8, b, h // repeat), head(v8, b, h // repeat)
            scores = (q * scale) @ k.T
            if isinstance(added, torch.Tensor):
                bias = added.expand(batch, case.heads, case.s_q, case.s_kv)[b, h]
                # A bias before scaling, or ALiBi's, is computed in FP32 itself.
                scores = scores + (Bounded.exact(bias) * Bounded.exact(torch.ones(()).double()))
            probability, log_sums = _probabilities(case, scores, visible[b, h], h)
            weights = probability
            if kept is not None:
                factor = kept[b, h].double() / (1.0 - dropout)
                weights = (weights * Bounded.exact(factor)) * Bounded.exact(torch.ones(()).double())
            weights8 = formats.s.round(weights)
            result = weights8 @ v
            rounded = formats.o.round(result)
            stored = rounded.rounded(dtype)
            out[-1].append(stored)
            kept_out = stored if formats.keeps_output else rounded
            saved[b, h] = (q, k, v, probability, weights8, kept_out, log_sums)
            weights_seen.append(weights)
            outputs_seen.append(result)
    zeros = {
        "q": torch.zeros(batch, case.heads, case.s_q, case.d_qk),
        "k": torch.zeros(batch, case.groups, case.s_kv, case.d_qk),
        "v": torch.zeros(batch, case.groups, case.s_kv, case.d_v),
    }
    sums = {
        name: [[Bounded.exact(zero[b, g]) for g in range(zero.shape[1])] for b in range(batch)]
        for name, zero in zeros.items()
    }
    grad_scores, grad_sink, products_seen = [], [], []
    for (b, h), (q, k, v, probability, weights8, kept_out, log_sums) in saved.items():
        do = head(do8, b, h)
        delta = (do * kept_out).sum(-1, keepdim=True)
        grad_weights = do @ v.T
        if kept is not None:
            grad_weights = grad_weights * Bounded.exact(kept[b, h].double() / (1.0 - dropout))
        grad_score = probability * (grad_weights - delta)
        grad_scores.append(grad_score)
        if case.softmax_type != "vanilla":
            offset = 0.0 if case.offset is None else float(case.offset[h])
            shifted = Bounded.exact(torch.tensor(offset).double()) - log_sums
            share = shifted.apply(torch.exp, lambda x: _EXP_ULPS * x.exp()) * delta
            grad_sink.append(-share.sum(0))
        product = grad_score * scale
        products_seen.append(product)
        product8 = formats.dp.round(product)
        g = h // repeat
        sums["q"][b][h] = product8 @ k
        sums["k"][b][g] = sums["k"][b][g] + product8.T @ q
        sums["v"][b][g] = sums["v"][b][g] + weights8.T @ do
    unrounded = {name: _stack(parts) for name, parts in sums.items()}
    gradients = {name: formats.dqkv.round(x).rounded(dtype) for name, x in unrounded.items()}
    shape = (batch, case.heads, case.s_q, case.s_kv)
    gradients["bias"] = Bounded(
        torch.stack([x.value for x in grad_scores]).view(shape),
        torch.stack([x.error for x in grad_scores]).view(shape),
    )
    if grad_sink:
        value = torch.stack([x.value for x in grad_sink]).view(batch, case.heads).sum(0)
        error = torch.stack([x.error for x in grad_sink]).view(batch, case.heads).sum(0)
        gradients["sink"] = Bounded(value, error).rounded(torch.float32)
    seen = {"s": weights_seen, "o": outputs_seen, "dp": products_seen,
            "dqkv": list(unrounded.values())}  # fmt: skip
    return Float8AttentionResult(
        _stack(out), gradients, {name: _largest(parts) for name, parts in seen.items()}
    )


def assert_bounded(actual: torch.Tensor, expected: Bounded, name: str) -> None:
    """Within the error of the reference."""
    assert_within(
        actual, expected.value.view(actual.shape), expected.error.view(actual.shape), name
    )
