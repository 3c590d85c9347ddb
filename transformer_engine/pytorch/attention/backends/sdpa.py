# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""torch's scaled_dot_product_attention, where its meaning is exactly ours.

Polarity: torch's boolean mask is True = visible, ours is True = masked out. Rows without a visible
key are NaN in some of torch's kernels, so such rows are shown every key and set to 0 afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...cpp_extensions.attention import attend
from ..dense import DenseInputs, load, store
from ..problem import AttentionOperands, AttentionParams
from .base import AttentionSwitches, Runner


def sdpa(*operands: Any, **options: Any) -> Tensor:
    """torch's operator; inside of transforms that differentiate, its composed form.

    Its fused CPU kernel has no second derivative, and none in forward mode. Whether a gradient of
    plain autograd is differentiated again is not known here: then that kernel raises.
    """
    if torch.compiler.is_compiling() or not _is_differentiated_by_transform():
        return F.scaled_dot_product_attention(*operands, **options)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*operands, **options)


def _is_differentiated_by_transform() -> bool:
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    layers = torch._C._functorch.get_interpreter_stack() or ()
    return any(layer.key() != torch._C._functorch.TransformType.Vmap for layer in layers)


def causal_flag_holds(scale: float) -> bool:
    """Whether torch's ``is_causal=True`` computes attention with this scale.

    torch's fused CPU operator fills scores above the diagonal with -inf before it scales them:
    inf with a negative scale, NaN with 0 and what FP32 rounds to 0. A boolean mask comes after.
    """
    return scale >= torch.finfo(torch.float32).tiny


def common_refusal(params: AttentionParams, switches: AttentionSwitches) -> str | None:
    """Reasons that hold for every use of torch's operator."""
    if not (switches.flash or switches.fused):
        return "switched off by NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=0"
    if switches.deterministic and params.device.type != "cpu":
        return "its backward pass is not deterministic on this device"
    if params.return_max_logit:
        return "it does not return the largest logit (return_max_logit=True)"
    if params.softmax_type != "vanilla":
        return f"it has no softmax with a sink (softmax_type={params.softmax_type!r})"
    if params.head_dim_qk == 0:
        return "head size 0"
    return None


def connect(out: Tensor, *inputs: Tensor) -> Tensor:
    """Make a constant a function of the inputs, with gradient 0: an empty problem has gradients."""
    for x in inputs:
        out = out + x.flatten()[:0].sum()
    return out


class SdpaBackend:
    """torch's operator on sbhd and bshd, and on thd brought to a padded batch."""

    name = "TorchSDPA"

    def refusal(self, params: AttentionParams, switches: AttentionSwitches) -> str | None:
        """It has one additive mask of the input dtype and no sink."""
        reason = common_refusal(params, switches)
        if reason is not None:
            return reason
        if params.core_attention_bias_type == "pre_scale_bias":
            return "it adds its bias after scaling (core_attention_bias_type='pre_scale_bias')"
        bias_dtype = params.core_attention_bias_dtype
        if bias_dtype is not None and torch.promote_types(bias_dtype, params.dtype) != params.dtype:
            return f"its bias has the input dtype, and {params.dtype} cannot hold {bias_dtype}"
        if params.core_attention_bias_type == "alibi" and params.dtype.itemsize < 4:
            return f"its bias has the input dtype, and {params.dtype} cannot hold distances (alibi)"
        return None

    def compile(self, params: AttentionParams) -> Runner:
        """Bind the problem; full and causal attention without operands get the shortest path."""
        rule = params.mask
        scale, dropout = params.softmax_scale, params.attention_dropout
        grouped = params.num_heads != params.num_gqa_groups
        s_q, s_kv = params.max_seqlen_q, params.max_seqlen_kv
        empty = 0 in (params.batch_size, params.num_heads, params.head_dim_v, s_q, s_kv)
        if not params.needs_operands and not empty and s_q is not None and s_kv is not None:
            diagonal_fits = (
                rule.is_causal and rule.shift(s_q, s_kv) == 0 and causal_flag_holds(scale)
            )
            if diagonal_fits or rule.is_unbounded:
                return _direct(params.qkv_format, diagonal_fits, scale, dropout, grouped)

        def run(q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None) -> Tensor:
            inputs = load(params, q, k, v, operands)
            if 0 in inputs.q.shape or 0 in inputs.k.shape or 0 in inputs.v.shape:
                out = q.new_zeros((*inputs.q.shape[:3], params.head_dim_v))
                return store(params, inputs, connect(out, q, k, v))
            mask = _additive_or_boolean(inputs)
            out = sdpa(
                inputs.q, inputs.k, inputs.v, mask, dropout, False, scale=scale, enable_gqa=grouped
            )
            return store(params, inputs, out)

        return run


def _direct(qkv_format: str, causal: bool, scale: float, dropout: float, grouped: bool) -> Runner:
    """Attention without any tensor operand: one native call where torch's operator would take its
    fused CPU kernel, else the operator.
    """
    is_sbhd = qkv_format == "sbhd"

    def run_composed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if is_sbhd:
            q, k, v = q.permute(1, 2, 0, 3), k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3)
        else:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = sdpa(q, k, v, None, dropout, causal, scale=scale, enable_gqa=grouped)
        return out.permute(2, 0, 1, 3).flatten(2) if is_sbhd else out.transpose(1, 2).flatten(2)

    def run(q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None) -> Tensor:
        out = attend(q, k, v, is_sbhd, causal, scale)
        return run_composed(q, k, v) if out is None else out

    def run_operator(q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None) -> Tensor:
        return run_composed(q, k, v)

    # A traced call makes its plan anew, and takes the operator that a compiler knows.
    is_composed = dropout > 0.0 or grouped or torch.compiler.is_compiling()
    return run_operator if is_composed else run


def _additive_or_boolean(inputs: DenseInputs) -> Tensor | None:
    """Our mask and bias in torch's form."""
    hidden, bias = inputs.hidden, inputs.bias
    if hidden is not None and inputs.empty_rows is not None:
        hidden = hidden & ~inputs.empty_rows
    if bias is None:
        return None if hidden is None else ~hidden
    bias = bias.to(inputs.q.dtype)
    return bias if hidden is None else torch.where(hidden, -torch.inf, bias)
