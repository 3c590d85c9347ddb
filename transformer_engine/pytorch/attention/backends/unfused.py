# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Reference attention from plain tensor operations: every documented combination, on any device.

Scores and probabilities are FP32 for half inputs (FP64 for FP64) and the output is rounded once.
Hidden scores take the lowest finite number, so that they vanish exactly next to any visible score
and a row without a visible key stays finite; such rows are set to 0 at the end. Memory: about four
``[b, h, s_q, s_kv]`` FP32 tensors with gradients.

`NVTE_APPLY_QK_LAYER_SCALING` exists elsewhere to keep FP16 scores in range; FP32 scores need no
such help, and the scaling cancels mathematically, so it changes nothing here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dense import DenseInputs, load, store
from ..problem import AttentionOperands, AttentionParams
from .base import AttentionSwitches, Runner


def grouped_product(left: Tensor, right: Tensor, groups: int) -> Tensor:
    """``[b, h, m, k] @ [b, g, k, n]``: consecutive heads share a group; nothing is repeated."""
    batch, heads, rows, depth = left.shape
    if heads == groups:
        return torch.matmul(left, right)
    merged = left.reshape(batch, groups, heads // groups * rows, depth)
    return torch.matmul(merged, right).view(batch, heads, rows, right.shape[-1])


def probabilities(scores: Tensor, sink: Tensor | None) -> Tensor:
    """Softmax over keys; a sink is one more logit per head whose probability is dropped."""
    if sink is None:
        return torch.softmax(scores, dim=-1)
    batch, heads, rows, _ = scores.shape
    sink = sink.to(device=scores.device, dtype=scores.dtype).view(1, heads, 1, 1)
    column = sink.expand(batch, heads, rows, 1)
    return torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]


def largest_logits(scores: Tensor, hidden: Tensor | None) -> Tensor:
    """Largest visible score of each head, ``[h]``; -inf for a head that sees nothing."""
    scores = scores.detach()
    if scores.numel() == 0:
        return scores.new_full((scores.shape[1],), -torch.inf)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.amax(dim=(0, 2, 3))


class UnfusedBackend:
    """Plain tensor operations."""

    name = "UnfusedDotProductAttention"

    def refusal(self, params: AttentionParams, switches: AttentionSwitches) -> str | None:
        """It takes everything that is not switched off."""
        del params
        return None if switches.unfused else "switched off by NVTE_UNFUSED_ATTN=0"

    def compile(self, params: AttentionParams) -> Runner:
        """Bind the problem."""
        device_type = params.device.type

        def run(
            q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None
        ) -> Tensor | tuple[Tensor, Tensor]:
            if torch.is_autocast_enabled(device_type):
                # The caller has cast the inputs; inside, autocast would round the scores.
                with torch.autocast(device_type, enabled=False):
                    return self._run(params, q, k, v, operands)
            return self._run(params, q, k, v, operands)

        return run

    def _run(
        self,
        params: AttentionParams,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        inputs = load(params, q, k, v, operands)
        sink = operands.softmax_offset if operands is not None else None
        out, max_logit = self._attend(params, inputs, sink)
        out = store(params, inputs, out)
        return out if max_logit is None else (out, max_logit)

    def _attend(
        self, params: AttentionParams, inputs: DenseInputs, sink: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        out_dtype = params.dtype
        compute_dtype = torch.promote_types(out_dtype, torch.float32)
        groups = params.num_gqa_groups
        q, k, v = (x.to(compute_dtype) for x in (inputs.q, inputs.k, inputs.v))
        scores = grouped_product(q * params.softmax_scale, k.transpose(-1, -2), groups)
        if inputs.bias is not None:
            scores = scores + inputs.bias.to(compute_dtype)
        hidden = inputs.hidden
        max_logit = largest_logits(scores, hidden) if params.return_max_logit else None
        if hidden is not None:
            scores = scores.masked_fill(hidden, torch.finfo(compute_dtype).min)
        weights = probabilities(scores, sink)
        if params.attention_dropout > 0.0:
            weights = F.dropout(weights, params.attention_dropout, training=True)
        return grouped_product(weights, v, groups).to(out_dtype), max_logit
