# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention written out pair by pair in float64, and error bounds for it.

Independent of the library: visibility is decided by a function of (query, key, lengths), never by
a mask that the library built.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .tolerances import gamma, rounding_bound


@dataclass(slots=True)
class AttentionCase:
    """One attention problem in [b, s, heads, d], with the lengths of every sequence."""

    mask_type: str
    lengths_q: list[int]
    lengths_kv: list[int]
    s_q: int
    s_kv: int
    heads: int = 4
    groups: int = 2
    d_qk: int = 5
    d_v: int = 3
    window: tuple[int, int] | None = None
    bottom_right: bool | None = None
    bias_type: str = "no_bias"
    softmax_type: str = "vanilla"
    scale: float = 0.4
    bias: torch.Tensor | None = None
    slopes: torch.Tensor | None = None  # [h] or [b, h]; the default slopes when None
    offset: torch.Tensor | None = None  # [h]
    arbitrary: torch.Tensor | None = None  # [b, h, s_q, s_kv], True = masked out
    extra: dict[str, torch.Tensor] = field(default_factory=dict)

    def is_padded(self) -> bool:
        """Whether the lengths count."""
        return "padding" in self.mask_type

    def sizes(self, b: int) -> tuple[int, int]:
        """Tokens of sequence b on both sides."""
        if self.is_padded():
            return self.lengths_q[b], self.lengths_kv[b]
        return self.s_q, self.s_kv

    def shift(self, b: int) -> int:
        """Column of the diagonal in row 0."""
        size_q, size_kv = self.sizes(b)
        if self.mask_type in ("causal", "padding_causal"):
            return 0
        aligned = self.mask_type.endswith("bottom_right") or self.bottom_right is not False
        return size_kv - size_q if aligned else 0

    def sees(self, b: int, h: int, i: int, j: int) -> bool:
        """Whether query i sees key j."""
        size_q, size_kv = self.sizes(b)
        if i >= size_q or j >= size_kv:
            return False
        if self.arbitrary is not None and bool(self.arbitrary[b, h, i, j]):
            return False
        center = i + self.shift(b)
        left, right = self.window if self.window is not None else (-1, -1)
        if "causal" in self.mask_type and j > center:
            return False
        if left >= 0 and j < center - left:
            return False
        return not (right >= 0 and "causal" not in self.mask_type and j > center + right)

    def visible(self) -> torch.Tensor:
        """All pairs, bool [b, h, s_q, s_kv]."""
        return torch.tensor(
            [
                [
                    [[self.sees(b, h, i, j) for j in range(self.s_kv)] for i in range(self.s_q)]
                    for h in range(self.heads)
                ]
                for b in range(len(self.lengths_q))
            ]
        ).reshape(len(self.lengths_q), self.heads, self.s_q, self.s_kv)

    def added(self) -> torch.Tensor | float:
        """What is added to the scaled scores, float64."""
        if self.bias is not None and self.bias_type == "pre_scale_bias":
            return self.scale * self.bias.double()
        if self.bias is not None and self.bias_type == "post_scale_bias":
            return self.bias.double()
        if self.bias_type == "no_bias":
            return 0.0
        slopes = default_slopes(self.heads) if self.slopes is None else self.slopes.double()
        slopes = slopes.expand(len(self.lengths_q), self.heads)
        out = torch.zeros(len(self.lengths_q), self.heads, self.s_q, self.s_kv, dtype=torch.float64)
        for b in range(out.shape[0]):
            i = torch.arange(self.s_q)[:, None] + self.shift(b)
            out[b] = -(i - torch.arange(self.s_kv)).abs() * slopes[b][:, None, None]
        return out


def default_slopes(heads: int) -> torch.Tensor:
    """ALiBi slopes as the paper's appendix builds them, by recursion over powers of two."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    doubled = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)]
    return torch.tensor((first + doubled[0::2])[:heads], dtype=torch.float64)


@dataclass(slots=True)
class AttentionResult:
    """Reference output and what its error bounds need."""

    out: torch.Tensor  # [b, s_q, h, d_v]
    logits: torch.Tensor  # [b, h, s_q, s_kv], -inf where hidden
    probabilities: torch.Tensor


def reference_attention(
    case: AttentionCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> AttentionResult:
    """softmax(scale Q K^T + bias) V over visible pairs; differentiable. q, k, v: [b, s, heads,
    d].
    """
    repeat = case.heads // case.groups
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    visible = case.visible()
    scores = case.scale * torch.einsum("bhid,bhjd->bhij", q, k) + case.added()
    weights = torch.where(visible, scores, 0.0).exp() * visible
    total = weights.sum(-1, keepdim=True)
    if case.softmax_type == "off-by-one":
        total = total + 1
    elif case.softmax_type == "learnable":
        assert case.offset is not None
        total = total + case.offset.double().exp().view(1, -1, 1, 1)
    probabilities = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)
    out = torch.einsum("bhij,bhjd->bihd", probabilities, v)
    logits = torch.where(visible, scores, -torch.inf).detach()
    return AttentionResult(out, logits, probabilities.detach())


def score_error(case: AttentionCase, q: torch.Tensor, k: torch.Tensor, dtype: torch.dtype) -> float:
    """Largest absolute error of a score whose products are summed in `dtype`."""
    repeat = case.heads // case.groups
    magnitudes = torch.einsum(
        "bihd,bjhd->bhij",
        q.detach().double().abs(),
        k.detach().double().abs().repeat_interleave(repeat, 2),
    )
    added = torch.as_tensor(case.added()).detach().abs()
    return float(gamma(q.shape[-1] + 4, dtype) * (case.scale * magnitudes + added).max())


def output_bound(
    case: AttentionCase,
    result: AttentionResult,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    dtype: torch.dtype,
    probability_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Error bound of the output, [b, s_q, h, d_v].

    A score error e changes each probability by a ratio of at most exp(2 e); exponentials, their
    sum and the product with V are chains of roundings in FP32 (or FP64); kernels may round the
    probabilities to `probability_dtype` before the last product; the result is rounded once.
    """
    compute = torch.promote_types(dtype, torch.float32)
    error = score_error(case, q, k, compute)
    ratio = torch.tensor(2.0 * error).expm1().item() + gamma(2 * case.s_kv + 16, compute)
    if probability_dtype is not None:
        ratio += gamma(1, probability_dtype)
    repeat = case.heads // case.groups
    magnitude = torch.einsum(
        "bhij,bjhd->bihd",
        result.probabilities,
        v.detach().double().abs().repeat_interleave(repeat, 2),
    )
    bound = ratio * magnitude
    return bound + rounding_bound(result.out.detach().abs() + bound, dtype)


def gradient_bound(
    case: AttentionCase,
    result: AttentionResult,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    grad_out: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Error bounds of dQ, dK, dV in [b, s, heads, d] and of dBias in [b, h, s_q, s_kv].

    The formulas of the gradients with every term replaced by its magnitude, times the length of
    the longest chain of roundings on the way, times how far score errors move a probability.
    """
    q, k, v = (x.detach().double().abs() for x in inputs)
    repeat = case.heads // case.groups
    k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    p, grad = result.probabilities, grad_out.double().abs()
    d_p = torch.einsum("bihd,bjhd->bhij", grad, v)
    d_s = p * (d_p + (p * d_p).sum(-1, keepdim=True))
    chain = 2 * (case.s_q * repeat + case.s_kv + case.d_qk + case.d_v) + 32
    error = score_error(case, inputs[0], inputs[1], dtype)
    ratio = gamma(chain, dtype) + 2 * torch.tensor(2.0 * error).expm1().item()

    def per_group(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (case.groups, repeat)).sum(3)

    tiny = torch.finfo(dtype).tiny
    return (
        ratio * case.scale * torch.einsum("bhij,bjhd->bihd", d_s, k) + tiny,
        ratio * per_group(case.scale * torch.einsum("bhij,bihd->bjhd", d_s, q)) + tiny,
        ratio * per_group(torch.einsum("bhij,bihd->bjhd", p, grad)) + tiny,
        ratio * d_s + tiny,
    )
