# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Fused attention by cuDNN, forward and backward as one autograd node each.

Device memory alone, FP16 and BF16. What NVIDIA documents as not supported is refused with its
reason; what cuDNN finds no plan for shows at the first call, and then the next candidate runs. A
plan is kept per problem and strides, so that a steady-state call asks cuDNN nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...cpp_extensions.attention import FusedAttention
from ..problem import AttentionOperands, AttentionParams
from ..resolve import check_padded_lengths, check_slots
from .base import AttentionSwitches, Runner

_PLAN_LENGTH = 64  # longest lengths that are read from the device are rounded up to it


class CudnnBackend:
    """cuDNN's attention through the core's op."""

    name = "FusedAttention"

    def refusal(self, params: AttentionParams, switches: AttentionSwitches) -> str | None:
        """What the op has no argument for, then what cuDNN does not take."""
        if not switches.fused:
            return "switched off by NVTE_FUSED_ATTN=0"
        if params.device.type != "cuda":
            return f"it needs a CUDA device, the tensors are on {params.device.type}"
        reason = _against_kinds(params)
        if reason is not None:
            return reason
        return native_refusal(params, switches.deterministic)

    def compile(self, params: AttentionParams) -> Runner:
        """Bind the problem."""
        return make_runner(params)


def _against_kinds(params: AttentionParams) -> str | None:
    """Reasons by the kind of problem."""
    bias = params.core_attention_bias_type
    if torch.compiler.is_compiling():
        return "torch.compile is tracing, and it is not an operator of torch"
    if params.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes float16 and bfloat16, not {params.dtype}"
    if params.mask.arbitrary:
        return "it has no arbitrary mask"
    if bias in ("pre_scale_bias", "alibi"):
        return f"it has a bias after scaling alone (core_attention_bias_type={bias!r})"
    if params.has_bias and params.core_attention_bias_dtype != params.dtype:
        return (
            f"its bias has the input dtype, and not {params.core_attention_bias_dtype} for "
            f"{params.dtype}"
        )
    if params.softmax_type != "vanilla":
        return f"it has no softmax with a sink (softmax_type={params.softmax_type!r})"
    if params.return_max_logit:
        return "it does not return the largest logit (return_max_logit=True)"
    if params.mask.pads and not params.has_cu_seqlens:
        return "padding is given as a mask, it takes cu_seqlens_q and cu_seqlens_kv"
    return None


def problem_sizes(params: AttentionParams) -> dict[str, int]:
    """Sizes by the core's names; unknown lengths of packed sequences stand for any."""
    return {
        "batch": params.batch_size,
        "heads": params.num_heads,
        "groups": params.num_gqa_groups,
        "queries": _PLAN_LENGTH if params.max_seqlen_q is None else params.max_seqlen_q,
        "keys": _PLAN_LENGTH if params.max_seqlen_kv is None else params.max_seqlen_kv,
        "size_qk": params.head_dim_qk,
        "size_v": params.head_dim_v,
    }


def native_refusal(params: AttentionParams, deterministic: bool) -> str | None:
    """Why the core's op refuses a problem on this device, a backward included."""
    native = make_native(params, deterministic or params.deterministic)
    sizes = problem_sizes(params)
    return native.refusal(sizes, params.dtype, params.device.index or 0, params.is_packed)


def make_native(params: AttentionParams, deterministic: bool) -> FusedAttention:
    """The native object of a problem."""
    return FusedAttention(
        qkv_format=params.qkv_format,
        scale=params.softmax_scale,
        dropout=params.attention_dropout,
        left=params.mask.left,
        right=params.mask.right,
        is_bottom_right=params.mask.bottom_right,
        has_lengths=params.is_packed or params.mask.pads,
        has_bias=params.has_bias,
        is_deterministic=deterministic,
    )


def make_runner(params: AttentionParams) -> Runner:
    """Runs the native object; its result is None where it declines the problem after all."""
    native = make_native(params, params.deterministic)
    if not (params.is_packed or params.mask.pads):

        def run_full(
            q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None
        ) -> Tensor | None:
            bias = None if operands is None else operands.bias
            return native(q, k, v, None, None, None, None, bias, 0, 0)

        return run_full

    def run_lengths(
        q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None
    ) -> Tensor | None:
        assert operands is not None  # lengths are among them
        _check_lengths(params, operands, q, k)
        longest_q, longest_kv = params.max_seqlen_q, params.max_seqlen_kv
        if longest_q is None:
            longest_q = _longest(operands.cu_seqlens_q)
        if longest_kv is None:
            longest_kv = _longest(operands.cu_seqlens_kv)
        on_device = _Lengths(params, operands, q.device)
        return native(
            q,
            k,
            v,
            on_device.cu_q,
            on_device.cu_kv,
            on_device.cu_q_padded,
            on_device.cu_kv_padded,
            operands.bias,
            longest_q,
            longest_kv,
        )

    return run_lengths


def padding_lengths(
    params: AttentionParams, operands: AttentionOperands, q: Tensor, k: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The checked lengths of an sbhd or bshd batch on the device of its tensors."""
    _check_lengths(params, operands, q, k)
    on_device = _Lengths(params, operands, q.device)
    return on_device.cu_q, on_device.cu_kv


class _Lengths:
    """The lengths of one call on the device of its tensors."""

    __slots__ = ("cu_kv", "cu_kv_padded", "cu_q", "cu_q_padded")

    def __init__(
        self, params: AttentionParams, operands: AttentionOperands, device: torch.device
    ) -> None:
        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True).contiguous()

        self.cu_q, self.cu_kv = move(operands.cu_seqlens_q), move(operands.cu_seqlens_kv)
        is_packed = params.is_packed
        self.cu_q_padded = move(operands.cu_seqlens_q_padded) if is_packed else None
        self.cu_kv_padded = move(operands.cu_seqlens_kv_padded) if is_packed else None


def _longest(cu_seqlens: Tensor | None) -> int:
    """The longest sequence, in steps that let batches share a plan; waits for the device."""
    assert cu_seqlens is not None  # a packed batch without them was refused
    longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max())
    return -(-longest // _PLAN_LENGTH) * _PLAN_LENGTH


def _check_lengths(
    params: AttentionParams, operands: AttentionOperands, q: Tensor, k: Tensor
) -> None:
    """Check the values of lengths in host memory; elsewhere that would wait for the device."""
    for side, x, size in (("q", q, params.max_seqlen_q), ("kv", k, params.max_seqlen_kv)):
        cu_seqlens, padded = operands.packed_lengths(side)
        offsets = cu_seqlens if padded is None else padded
        if cu_seqlens.device.type != "cpu" or offsets.device.type != "cpu":
            continue
        if params.is_packed:
            check_slots(side, cu_seqlens.tolist(), offsets.tolist(), x.shape[0], size)
        else:
            assert size is not None  # the axis of an sbhd or bshd input
            check_padded_lengths(side, cu_seqlens, size)
