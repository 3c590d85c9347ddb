# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""FP8 attention by cuDNN where it takes the problem: the same rule, in one fused pass each way.

Query, key and value are quantized in their own layout. Scales that must be known beforehand are
those of the slots; the amaxes that cuDNN gives are observed there, as a cast would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...constants import DType, TE_DType
from ...cpp_extensions.attention import Float8Attention
from ..backends.cudnn import padding_lengths, problem_sizes
from ..problem import AttentionOperands, AttentionParams
from .boundary import Boundary
from .codes import Codes, Scale, Slots
from .function import Float8AttentionOptions
from .recipes import FORWARD_SLOTS

__all__ = ["FusedFloat8Attention", "fused_refusal", "make_fused"]

_HALF = (torch.float16, torch.bfloat16)


def fused_refusal(
    params: AttentionParams, options: Float8AttentionOptions, slots: Slots
) -> str | None:
    """Why the fused pass has no argument for a call, by its kind alone; None when it has."""
    if params.device.type != "cuda":
        return f"it needs a CUDA device, the tensors are on {params.device.type}"
    if params.dtype not in _HALF:
        return f"it takes inputs of float16 and bfloat16, not {params.dtype}"
    if params.is_packed or params.mask.arbitrary or params.has_bias:
        return "it has no packed sequences (thd), arbitrary mask or bias"
    if params.attention_dropout > 0.0 or params.softmax_type != "vanilla":
        return "it has no dropout and no softmax with a sink"
    if params.return_max_logit:
        return "it does not return the largest logit (return_max_logit=True)"
    if params.mask.pads and not params.has_cu_seqlens:
        return "padding is given as a mask, it takes cu_seqlens_q and cu_seqlens_kv"
    if options.backward != "quantized":
        return "its backward is in FP8, the recipe or the call asks for one in high precision"
    if not (slots.is_delayed("s") and slots.is_delayed("dp")):
        return "it needs delayed scales of S and dP"
    return None


@dataclass(frozen=True, slots=True)
class FusedFloat8Attention:
    """One problem: what its native object was made for."""

    native: Float8Attention
    params: AttentionParams
    is_output_delayed: bool  # the output comes as codes, with a scale known beforehand
    is_gradient_delayed: bool  # so do the gradients
    keeps_output: bool  # else the backward reads codes of the output

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
        slots: Slots,
        boundary: Boundary,
    ) -> Tensor | None:
        """The output ``[.., h * d_v]``; None where cuDNN has no plan after all.

        q, k, v: as the module gets them, in sbhd or bshd.
        """
        lengths: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.params.mask.pads:
            assert operands is not None  # lengths are among them
            lengths = padding_lengths(self.params, operands, q, k)
            q, k, v = self._without_padding(q, k, v, *lengths)
        wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        out: Tensor | None = _Fused.apply(q, k, v, lengths, self, slots, boundary, wants_gradient)
        return out

    def _without_padding(
        self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_kv: Tensor | None
    ) -> tuple[Tensor, ...]:
        """What stands in padding would be observed by the scales."""
        hidden = []
        for x, cu_seqlens in ((q, cu_q), (k, cu_kv)):
            assert cu_seqlens is not None
            axis = 0 if self.params.qkv_format == "sbhd" else 1
            tokens = torch.arange(x.shape[axis], device=x.device)
            rows = tokens >= (cu_seqlens[1:] - cu_seqlens[:-1])[:, None]  # [b, s]
            hidden.append((rows.T if axis == 0 else rows)[..., None, None])
        return q.masked_fill(hidden[0], 0), k.masked_fill(hidden[1], 0), v.masked_fill(hidden[1], 0)


def make_fused(
    params: AttentionParams,
    options: Float8AttentionOptions,
    slots: Slots,
    *,
    deterministic: bool,
    is_training: bool,
) -> tuple[FusedFloat8Attention | None, str | None]:
    """The fused pass for a problem that `fused_refusal` has nothing against, or why there is
    none.
    """
    element = slots.dtype("qkv")
    half = TE_DType[params.dtype]
    is_output_delayed, is_gradient_delayed = slots.is_delayed("o"), slots.is_delayed("dqkv")
    saves_codes = is_output_delayed or not options.keeps_output
    native = Float8Attention(
        qkv_format=params.qkv_format,
        scale=params.softmax_scale,
        left=params.mask.left,
        right=params.mask.right,
        is_bottom_right=params.mask.bottom_right,
        has_lengths=params.mask.pads,
        is_deterministic=deterministic,
        dtype=int(element),
        out_dtype=int(slots.dtype("o") if is_output_delayed else half),
        saved_out_dtype=int(slots.dtype("o") if saves_codes else half),
        grad_out_dtype=int(slots.dtype("do")),
        grad_dtype=int(slots.dtype("dqkv") if is_gradient_delayed else half),
    )
    reason = native.refusal(problem_sizes(params), params.device.index or 0, is_training)
    if reason is not None:
        return None, reason
    fused = FusedFloat8Attention(
        native, params, is_output_delayed, is_gradient_delayed, options.keeps_output
    )
    return fused, None


class _Fused(torch.autograd.Function):
    """The two passes around the native calls."""

    @staticmethod
    def forward(  # noqa: PLR0913 - what takes part in the rule
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: tuple[Tensor | None, Tensor | None],
        fused: FusedFloat8Attention,
        slots: Slots,
        boundary: Boundary,
        wants_gradient: bool,
    ) -> Tensor | None:
        codes = boundary.encode_inputs(slots, (q, k, v))
        scales = slots.call.forward_scales
        assert scales is not None  # S is delayed
        scale_s, scale_o = (scales[FORWARD_SLOTS[x] : FORWARD_SLOTS[x] + 1] for x in ("s", "o"))
        # The backward reads the scale of this forward, which its region's end replaces.
        scale_s = scale_s.clone()
        data_q, data_k, data_v = (x.data for x in codes)
        descale_q, descale_k, descale_v = (x.scale.scale_inv for x in codes)
        result = fused.native.forward(
            data_q,
            data_k,
            data_v,
            *lengths,
            descale_q,
            descale_k,
            descale_v,
            scale_s,
            1.0 / scale_s,
            scale_o if fused.is_output_delayed else None,
            wants_gradient,
        )
        if result is None:
            return None
        raw, statistics, amax_s, amax_o = result
        slots.raise_amax("s", amax_s)
        saved, saved_scale, out = raw, None, raw
        if fused.is_output_delayed:
            slots.raise_amax("o", amax_o)
            saved_scale = boundary.output_scale = Scale(1.0 / scale_o, slots.dtype("o"))
            out = Codes(raw, saved_scale).values(fused.params.dtype)
        elif not fused.keeps_output:
            out_codes = slots.encode("o", raw)
            saved, saved_scale = out_codes.data, out_codes.scale
        ctx.fused, ctx.slots, ctx.boundary = fused, slots, boundary
        ctx.input_scales, ctx.out_scale = (descale_q, descale_k, descale_v), saved_scale
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(data_q, data_k, data_v, saved, statistics, scale_s, *lengths)
        return out.flatten(-2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = [None] * 3
        if grad is not None:
            gradients = [*_fused_backward(ctx, grad)]
        ctx.slots.call.finish_backward()
        return (*gradients, None, None, None, None, None)


def _fused_backward(ctx: Any, grad: Tensor) -> list[Tensor]:
    fused: FusedFloat8Attention = ctx.fused
    slots: Slots = ctx.slots
    boundary: Boundary = ctx.boundary
    q, k, v, out, statistics, scale_s, cu_q, cu_kv = ctx.saved_tensors
    descale_q, descale_k, descale_v = ctx.input_scales
    params = fused.params
    grad_codes = boundary.encode_output_gradient(slots, grad)
    grad_data = grad_codes.data.unflatten(-1, (params.num_heads, params.head_dim_v))
    scale_dp = slots.scale("dp")
    scale_gradient = slots.scale("dqkv").clone() if fused.is_gradient_delayed else None
    result = fused.native.backward(
        q,
        k,
        v,
        out,
        grad_data,
        statistics,
        cu_q,
        cu_kv,
        descale_q,
        descale_k,
        descale_v,
        None if ctx.out_scale is None else ctx.out_scale.scale_inv,
        grad_codes.scale.scale_inv,
        scale_s,
        1.0 / scale_s,
        scale_dp,
        1.0 / scale_dp,
        scale_gradient,
        scale_gradient,
        scale_gradient,
    )
    if result is None:
        raise RuntimeError(
            "DotProductAttention.backward: cuDNN refuses the backward of a forward that it took "
            f"({fused.native.reason}); both are planned together. Set NVTE_FUSED_ATTN=0."
        )
    *gradients, amax_q, amax_k, amax_v, amax_dp = result
    slots.raise_amax("dp", amax_dp)
    if scale_gradient is None:
        return boundary.round_input_gradients(slots, gradients)
    slots.raise_amax("dqkv", torch.maximum(torch.maximum(amax_q, amax_k), amax_v))
    scale = Scale(1.0 / scale_gradient, DType.cast(slots.dtype("dqkv")))
    boundary.input_gradient_scale = scale
    return [Codes(x, scale).values(params.dtype) for x in gradients]
