# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rule of FP8 attention out of plain tensor operations, on any device.

With ``x8`` the codes of x and ``[x8]`` what they stand for, sums and exponentials in FP32, and for
every head and the keys of its group:

    forward    S = scale [Q8] [K8]^T + bias on visible pairs       L = log of the sum of e^S
               P = e^(S - L)            P' = P, after dropout      O = [P'8] [V8]
    backward   delta = sum over d of [dO8] O                       dV = [P'8]^T [dO8]
               dS = P (dropout([dO8] [V8]^T) - delta)              dP = scale dS
               dQ = [dP8] [K8]          dK = [dP8]^T [Q8]          dbias = sum of dS

Query, key and value have one scale, and so have their gradients. Where the scale of O is known
beforehand (delayed scaling) the output is [O8], which delta reads, too; so it is with the gradients
dQ, dK and dV. Otherwise (current scaling) they are rounded to the dtype of the inputs, and delta
reads that (NVTE_DPA_FP8CS_O_in_F16=0: [O8]). This is the order of cuDNN's FP8 attention graph.

A sink is one more score, of no key; its gradient is - sum of P_sink delta. In rows without a
visible key P is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...cpp_extensions.steps import QuantizedCall
from ..backends.unfused import grouped_product, largest_logits, probabilities
from .boundary import Boundary
from .codes import Codes, Scale, Slots, flat

__all__ = ["Float8AttentionOptions", "float8_attention"]


@dataclass(frozen=True, slots=True)
class Float8AttentionOptions:
    """What one call does besides its tensors."""

    softmax_scale: float
    groups: int
    dropout: float
    out_dtype: torch.dtype
    # "quantized"; or that of the values that the codes stand for; or that of the inputs as they
    # were ("high_precision").
    backward: str
    keeps_output: bool  # see Float8AttentionSettings
    returns_max_logit: bool


def _no_autocast(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """``[b, h, m, n]`` summed over the heads of each group."""
    heads = x.shape[1]
    return x if heads == groups else x.unflatten(1, (groups, heads // groups)).sum(2)


def _scores(q: Tensor, k: Tensor, options: Float8AttentionOptions, bias: Tensor | None) -> Tensor:
    scores = grouped_product(q * options.softmax_scale, k.transpose(-1, -2), options.groups)
    return scores if bias is None else scores + bias.float()


def _softmax(scores: Tensor, hidden: Tensor | None, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities, and the logarithm L ``[b, h, s_q, 1]`` of what they were divided by."""
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    heads = scores.shape[1]
    with_sink = scores
    if sink is not None:
        column = sink.to(scores).view(1, heads, 1, 1).expand(*scores.shape[:-1], 1)
        with_sink = torch.cat((scores, column), dim=-1)
    log_sums = torch.logsumexp(with_sink, dim=-1, keepdim=True)
    result = torch.exp(scores - log_sums)
    return result if hidden is None else result.masked_fill(hidden, 0.0), log_sums


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Sum over what a tensor of that shape was broadcast along."""
    return x.sum_to_size(shape)


class _Float8Attention(torch.autograd.Function):
    """See the rule above; query, key and value are ``[b, h or g, s, d]``."""

    @staticmethod
    def forward(  # noqa: PLR0913 - what takes part in the rule
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sink: Tensor | None,
        hidden: Tensor | None,
        slots: Slots,
        options: Float8AttentionOptions,
        boundary: Boundary,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.slots, ctx.options, ctx.boundary = slots, options, boundary
        ctx.set_materialize_grads(False)
        with _no_autocast(q):
            out, max_logit = _forward(ctx, (q, k, v), bias, sink, hidden)
        if max_logit is not None:
            ctx.mark_non_differentiable(max_logit)
        return out, max_logit

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        call: QuantizedCall = ctx.slots.call
        gradients: tuple[Tensor | None, ...] = (None,) * 5
        if grad is not None:
            is_quantized = call.is_quantized and ctx.options.backward == "quantized"
            with _no_autocast(grad):
                gradients = (_quantized_backward if is_quantized else _plain_backward)(ctx, grad)
        call.finish_backward()
        return (*gradients, None, None, None, None)


def _forward(
    ctx: Any,
    qkv: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    sink: Tensor | None,
    hidden: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    slots: Slots = ctx.slots
    options: Float8AttentionOptions = ctx.options
    codes: list[Codes] = []
    if slots.call.is_quantized:
        codes = ctx.boundary.encode_inputs(slots, qkv)
        q, k, v = (x.values() for x in codes)
    else:
        slots.observe("qkv", flat(qkv))
        q, k, v = (x.float() for x in qkv)
    scores = _scores(q, k, options, bias)
    max_logit = largest_logits(scores, hidden) if options.returns_max_logit else None
    weights, log_sums = _softmax(scores, hidden, sink)
    kept = None
    if options.dropout > 0.0:
        kept = torch.rand_like(weights) >= options.dropout
        weights = weights * kept / (1.0 - options.dropout)
    weight_codes = None
    if slots.call.is_quantized:
        weight_codes = slots.encode("s", weights)
        weights = weight_codes.values()
    else:
        slots.observe("s", weights)
    out = grouped_product(weights, v, options.groups)
    out_codes = None
    if not slots.call.is_quantized:
        slots.observe("o", out)
    elif slots.is_delayed("o"):
        out_codes = slots.encode("o", out)
        ctx.boundary.output_scale = out_codes.scale
    elif not options.keeps_output:
        out_codes = slots.encode("o", out)
    is_rounded = out_codes is not None and slots.is_delayed("o")
    result = (out_codes.values() if is_rounded and out_codes is not None else out).to(
        options.out_dtype
    )
    kept_out = result if out_codes is None else out_codes.data
    is_high = options.backward == "high_precision" or not codes
    ctx.dtype = qkv[0].dtype
    ctx.input_scales = None if is_high else [x.scale for x in codes]
    ctx.weight_scale = None if weight_codes is None else weight_codes.scale
    ctx.out_scale = None if out_codes is None else out_codes.scale
    ctx.save_for_backward(
        *(qkv if is_high else (x.data for x in codes)),
        *(bias, sink, hidden, kept, log_sums, kept_out),
        None if weight_codes is None else weight_codes.data,
    )
    return result, max_logit


def _quantized_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    slots: Slots = ctx.slots
    options: Float8AttentionOptions = ctx.options
    *inputs, bias, sink, hidden, kept, log_sums, out, weight_data = ctx.saved_tensors
    q, k, v = _values_of(inputs, ctx.input_scales)
    weights = Codes(weight_data, ctx.weight_scale).values()
    out = out.float() if ctx.out_scale is None else Codes(out, ctx.out_scale).values()
    grad_out = ctx.boundary.encode_output_gradient(slots, grad).values()
    probability = torch.exp(_masked(_scores(q, k, options, bias), hidden) - log_sums)
    if hidden is not None:
        probability = probability.masked_fill(hidden, 0.0)
    delta = (grad_out * out).sum(-1, keepdim=True)
    grad_v = _by_group_product(weights, grad_out, options.groups)
    grad_weights = grouped_product(grad_out, v.transpose(-1, -2), options.groups)
    if kept is not None:
        grad_weights = grad_weights * kept / (1.0 - options.dropout)
    grad_scores = probability * (grad_weights - delta)
    grad_bias = grad_sink = None
    if bias is not None and ctx.needs_input_grad[3]:
        grad_bias = _sum_to(grad_scores, bias.shape).to(bias.dtype)
    if sink is not None and ctx.needs_input_grad[4]:
        share = torch.exp(sink.float().view(1, -1, 1, 1) - log_sums) * delta
        grad_sink = -share.sum((0, 2, 3)).to(sink.dtype).view(sink.shape)
    grad_products = slots.encode("dp", grad_scores * options.softmax_scale).values()
    grad_q = grouped_product(grad_products, k, options.groups)
    grad_k = _by_group_product(grad_products, q, options.groups)
    gradients = ctx.boundary.round_input_gradients(slots, (grad_q, grad_k, grad_v))
    return (*(x.to(ctx.dtype) for x in gradients), grad_bias, grad_sink)


def _by_group_product(left: Tensor, right: Tensor, groups: int) -> Tensor:
    """``left^T right`` of ``[b, h, m, .]`` tensors, summed over the heads of each group."""
    return _by_group(torch.matmul(left.transpose(-1, -2), right), groups)


def _masked(scores: Tensor, hidden: Tensor | None) -> Tensor:
    return scores if hidden is None else scores.masked_fill(hidden, torch.finfo(scores.dtype).min)


def _values_of(inputs: list[Tensor], scales: list[Scale]) -> list[Tensor]:
    return [Codes(data, scale).values() for data, scale in zip(inputs, scales, strict=True)]


def _plain_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of attention in high precision, at the inputs or at what their codes say."""
    options: Float8AttentionOptions = ctx.options
    *inputs, bias, sink, hidden, kept, _, _, _ = ctx.saved_tensors
    if ctx.input_scales is not None:
        inputs = _values_of(inputs, ctx.input_scales)
    leaves: list[Any] = [
        None if x is None else x.detach().requires_grad_(needed)
        for x, needed in zip((*inputs, bias, sink), ctx.needs_input_grad[:5], strict=True)
    ]
    with torch.enable_grad():
        q, k, v, own_bias, own_sink = leaves
        scores = _masked(_scores(q.float(), k.float(), options, own_bias), hidden)
        weights = probabilities(scores, own_sink)
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        if kept is not None:
            weights = weights * kept / (1.0 - options.dropout)
        out = grouped_product(weights, v.float(), options.groups)
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    gradients = iter(torch.autograd.grad(out, wanted, grad.float()))
    results = [next(gradients) if x is not None and x.requires_grad else None for x in leaves]
    dtypes = [ctx.dtype] * 3 + [None if x is None else x.dtype for x in (bias, sink)]
    return tuple(
        None if x is None else x.to(dtype) for x, dtype in zip(results, dtypes, strict=True)
    )


def float8_attention(  # noqa: PLR0913 - what takes part in the rule
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None,
    sink: Tensor | None,
    hidden: Tensor | None,
    slots: Slots,
    options: Float8AttentionOptions,
    boundary: Boundary,
) -> tuple[Tensor, Tensor | None]:
    """Attention by the rule above.

    Parameters
    ----------
    q, k, v : torch.Tensor
        ``[b, h, s_q, d_qk]``, ``[b, g, s_kv, d_qk]``, ``[b, g, s_kv, d_v]``.
    bias : torch.Tensor, optional
        Added to the scaled scores; broadcastable to ``[b, h, s_q, s_kv]``.
    sink : torch.Tensor, optional
        One score per head, ``[h]``.
    hidden : torch.Tensor, optional
        Boolean, broadcastable to ``[b, h, s_q, s_kv]``: True hides a pair.
    slots, options, boundary
        Quantizers; settings; what crosses the module's boundary in FP8.

    Returns
    -------
    torch.Tensor
        ``[b, h, s_q, d_v]`` of ``options.out_dtype``.
    torch.Tensor or None
        Largest visible score of each head, float32 ``[h]``, where the options want it.
    """
    result: tuple[Tensor, Tensor | None] = _Float8Attention.apply(
        q, k, v, bias, sink, hidden, slots, options, boundary
    )
    return result
