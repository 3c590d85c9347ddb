# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""DotProductAttention: ``softmax(scale * Q K^T + bias, masked) V`` for every documented
combination.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...arguments import (
    check_callables,
    check_choice,
    check_int,
    check_number,
    check_probability,
    group_size,
    received,
    tensor_parallel_size,
)
from ...constants import AttnTypes
from ...cpp_extensions import state as native_state
from ...module.base import resolve_device
from ...tensor import Float8Tensor
from ..backends.candidates import backend_reasons, compile_first
from ..fp8.boundary import decode_parts
from ..masks import normalize_mask_type, resolve_mask_rule
from ..problem import QKV_FORMATS, SOFTMAX_TYPES, AttentionOperands, AttentionParams
from ..resolve import (
    check_alibi_slopes,
    check_bias,
    check_cu_seqlens,
    check_packed,
    check_qkv,
    split_packed,
)
from .float8 import MAX_PLANS, AttentionPlan, Float8AttentionModule, Float8Call

__all__ = ["DotProductAttention"]

_WHO = "DotProductAttention"
_CP_COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
_may_run_fp8_attention = native_state.may_run_fp8_attention


@dataclass(frozen=True, slots=True)
class _CallSpec:
    """The non-tensor arguments of one call, constructor defaults filled in."""

    qkv_format: str
    attn_mask_type: str
    window_size: tuple[int, int] | None
    bottom_right_diagonal: bool | None
    bias_type: str
    max_seqlen_q: int | None
    max_seqlen_kv: int | None


class DotProductAttention(Float8AttentionModule):
    """Scaled dot-product attention.

    Parameters
    ----------
    num_attention_heads : int
        Query heads of the whole model; each tensor-parallel rank has ``num_attention_heads /
        tp_size``.
    kv_channels : int or pair of int
        Head size, or ``(d_qk, d_v)`` when they differ.
    num_gqa_groups : int, optional
        Key and value heads (default: as many as query heads). Head i uses group ``i // (heads /
        groups)``.
    attention_dropout : float
        Dropout probability of the softmax output, in training mode.
    qkv_format : {"sbhd", "bshd", "thd"}
        Order of the axes: sequence, batch, heads, head size; t is all tokens of a packed batch.
    attn_mask_type : str
        One of ``constants.AttnMaskTypes``; see :func:`get_attention_mask`, which defines them.
    window_size : pair of int, optional
        Sliding window ``(left, right)``, -1 = unbounded.
    bottom_right_diagonal : bool, optional
        Alignment of window and ALiBi diagonal for the mask types that leave it open (default True).
    sequence_parallel : bool
        With it dropout uses the ambient generator instead of the tracker's.
    tp_size, tp_group
        Tensor parallelism; the size of the group wins.
    get_rng_state_tracker : callable, optional
        Returns a tracker in whose ``fork()`` dropout draws.
    layer_number : int, optional
        1-based, 1 when None.
    attention_type : {"self", "cross"}
    cp_group, cp_global_ranks, cp_stream, cp_comm_type
        Context parallelism. More than one rank raises NotImplementedError in this version.
    softmax_scale : float, optional
        Default ``1 / sqrt(d_qk)``.
    softmax_type : {"vanilla", "off-by-one", "learnable"}
        ``exp(x_j)`` divided by the sum over keys, plus 1, or plus ``exp(softmax_offset[head])``.
    return_max_logit : bool
        Also return the largest visible score of each head, FP32 ``[heads]``, detached.
    name : str, optional
        Name for messages.

    Attributes
    ----------
    softmax_offset : torch.Tensor or None
        None; zeros ``[heads]`` outside the state dict (off-by-one); a parameter (learnable).
    """

    def __init__(  # noqa: PLR0913 - public signature
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.tp_group = tp_group
        self.tp_size = tensor_parallel_size(_WHO, tp_size, tp_group)
        self._set_sizes(num_attention_heads, kv_channels, num_gqa_groups)
        check_probability(_WHO, "attention_dropout", attention_dropout)
        check_choice(_WHO, "qkv_format", qkv_format, QKV_FORMATS)
        check_choice(_WHO, "attention_type", attention_type, AttnTypes)
        check_choice(_WHO, "softmax_type", softmax_type, SOFTMAX_TYPES)
        check_callables(_WHO, get_rng_state_tracker=get_rng_state_tracker)
        if layer_number is not None:
            check_int(_WHO, "layer_number", layer_number)
        if softmax_scale is not None:
            check_number(_WHO, "softmax_scale", softmax_scale)
        resolve_mask_rule(attn_mask_type, window_size, bottom_right_diagonal, _WHO)
        self.attention_dropout = attention_dropout
        self.qkv_format = qkv_format
        self.attn_mask_type = normalize_mask_type(attn_mask_type)
        self.window_size = None if window_size is None else tuple(window_size)
        self.bottom_right_diagonal = bottom_right_diagonal
        self.sequence_parallel = sequence_parallel
        self.get_rng_state_tracker = get_rng_state_tracker
        self.layer_number = 1 if layer_number is None else layer_number
        self.attention_type = attention_type
        self.softmax_scale = (
            self.hidden_size_per_attention_head_k**-0.5 if softmax_scale is None else softmax_scale
        )
        self.softmax_type = softmax_type
        self.return_max_logit = return_max_logit
        self._plans: dict[tuple[Any, ...], AttentionPlan] = {}
        self._accepted_cp_group: Any = None
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        self.softmax_offset: Tensor | None = None
        if softmax_type == "off-by-one":
            self.softmax_offset = torch.zeros(
                self._heads, dtype=torch.float32, device=resolve_device("cuda")
            )
        elif softmax_type == "learnable":
            self.softmax_offset = torch.nn.Parameter(
                torch.zeros(self._heads, dtype=torch.float32, device=resolve_device("cuda"))
            )

    def _set_sizes(
        self, heads: int, kv_channels: int | tuple[int, int], groups: int | None
    ) -> None:
        heads = check_int(_WHO, "num_attention_heads", heads)
        groups = heads if groups is None else check_int(_WHO, "num_gqa_groups", groups)
        if heads % groups != 0:
            raise ValueError(
                f"DotProductAttention: num_gqa_groups is {groups} and num_attention_heads is "
                f"{heads}; heads must be divisible by groups."
            )
        if groups % self.tp_size != 0:
            raise ValueError(
                f"DotProductAttention: num_gqa_groups is {groups} and tp_size is {self.tp_size}; "
                "groups must be divisible by the tensor-parallel size."
            )
        d_qk, d_v = _head_sizes(kv_channels)
        self.num_attention_heads = heads
        self.num_gqa_groups = groups
        self.num_gqa_groups_per_partition = groups // self.tp_size
        self.hidden_size_per_attention_head_k = d_qk
        self.hidden_size_per_attention_head_v = d_v
        self._heads = heads // self.tp_size

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Set a learnable `softmax_offset` to its initial value 0, on a real device if it was on
        meta.
        """
        offset = self.softmax_offset
        if defer_init or not isinstance(offset, torch.nn.Parameter):
            return
        device = resolve_device("cuda") if offset.device.type == "meta" else offset.device
        fresh = torch.zeros(offset.shape, dtype=offset.dtype, device=device)
        self.softmax_offset = torch.nn.Parameter(fresh, requires_grad=offset.requires_grad)

    def set_context_parallel_group(
        self,
        cp_group: Any,
        cp_global_ranks: Sequence[int] | None,
        cp_stream: Any,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Set or (with None) clear the context-parallel group.

        Raises
        ------
        NotImplementedError
            The group, or any group of a list of groups, has more than one rank.
        """
        check_choice(_WHO, "cp_comm_type", cp_comm_type, _CP_COMM_TYPES)
        self._accept_cp_group(cp_group)
        self.cp_group = cp_group
        self.cp_global_ranks = cp_global_ranks
        self.cp_stream = cp_stream
        self.cp_comm_type = cp_comm_type

    def _accept_cp_group(self, cp_group: Any) -> None:
        if cp_group is not None:
            groups = cp_group if isinstance(cp_group, (list, tuple)) else [cp_group]
            sizes = [group_size(_WHO, "cp_group", group) for group in groups]
            if any(size > 1 for size in sizes):
                raise NotImplementedError(
                    f"DotProductAttention: cp_group has {sizes} ranks; this version has no context "
                    "parallelism, the group must have one rank. Use tensor, sequence or data "
                    "parallelism instead."
                )
        self._accepted_cp_group = cp_group

    def forward(  # noqa: PLR0913 - public signature
        self,
        query_layer: Tensor | None = None,
        key_layer: Tensor | None = None,
        value_layer: Tensor | None = None,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: bool | None = None,
        fp8_output: bool = False,
        bf16_backward: bool = False,
        num_splits: int = 1,
        score_mod: Callable[..., Any] | None = None,
        score_mod_bprop: Callable[..., Any] | None = None,
        score_mod_tensors: dict[str, Tensor] | None = None,
        score_mod_bprop_tensors: dict[str, Tensor] | None = None,
        qkv_layer: Tensor | None = None,
        kv_layer: Tensor | None = None,
        qkv_interleave_dim: int = -3,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention output, heads flattened.

        Parameters
        ----------
        query_layer : torch.Tensor
            ``[s_q, b, h, d_qk]``, ``[b, s_q, h, d_qk]`` or ``[t_q, h, d_qk]``; any strides; FP16,
            BF16, FP32 or FP64; where attention runs in FP8 also all three as ``Float8Tensor``,
            whose codes are used as they are and whose gradients are FP8.
        key_layer, value_layer : torch.Tensor
            The same with g heads, s_kv or t_kv, and d_v for the value.
        attention_mask : torch.Tensor or pair of torch.Tensor, optional
            Boolean, **True = masked out**. Padding types: ``[b, 1, 1, s]``, or a pair (query, key)
            for cross attention; not read when `cu_seqlens_q` and `cu_seqlens_kv` are given.
            ``arbitrary``: broadcastable to ``[b, h, s_q, s_kv]``. Ignored by the other types.
        qkv_format, attn_mask_type, window_size, bottom_right_diagonal : optional
            Override the constructor's for this call.
        cu_seqlens_q, cu_seqlens_kv : torch.Tensor, optional
            int32 ``[b + 1]`` cumulative valid lengths, from 0; needed for thd. Mask types without
            padding do not read them.
        cu_seqlens_q_padded, cu_seqlens_kv_padded : torch.Tensor, optional
            int32 ``[b + 1]``, thd: first row of each sequence's slot, when slots are longer than
            sequences.
        max_seqlen_q, max_seqlen_kv : int, optional
            thd: longest sequence. None reads it from the lengths, which waits for the device.
        checkpoint_core_attention : bool
            Recompute attention in backward instead of keeping its intermediates; dropout repeats
            exactly.
        core_attention_bias_type : {"no_bias", "pre_scale_bias", "post_scale_bias", "alibi"}
        core_attention_bias : torch.Tensor, optional
            ``[b or 1, h or 1, s_q, s_kv]`` or ``[1, 1, 1, s_kv]``.
        alibi_slopes : torch.Tensor, optional
            FP32 ``[h]`` or ``[b, h]``.
        qkv_layer, kv_layer : torch.Tensor, optional
            Query, key and value (or key and value) in one tensor, stacked in dimension
            `qkv_interleave_dim`.
        fp8_output, bf16_backward : bool
            Where attention runs in FP8 (docs/fp8_attention.md): give the output as a
            ``Float8Tensor``; compute the gradients in high precision at the original inputs.
        fast_zero_fill, pad_between_seqs, num_splits
            Accepted. They tune kernels; they do not change this result.
        inference_params, score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors
            NotImplementedError when given; also inside ``autocast`` with MXFP8 and ``fp8_dpa`` or
            ``fp8_mha``.

        Returns
        -------
        torch.Tensor or (torch.Tensor, torch.Tensor)
            ``[s_q, b, h * d_v]``, ``[b, s_q, h * d_v]`` or ``[t_q, h * d_v]`` in the input dtype
            (the autocast dtype under ``torch.autocast``); with `return_max_logit` also FP32
            ``[h]``. Queries that may see nothing, and padding, give 0. What stands in padding (even
            NaN) influences no other result, and its gradient is 0.

        Raises
        ------
        ValueError, TypeError
            Inputs that do not fit each other, the module or the format; no backend accepts.
        """
        if not (
            inference_params is None
            and score_mod is None
            and score_mod_bprop is None
            and score_mod_tensors is None
            and score_mod_bprop_tensors is None
        ):
            _refuse_unsupported(inference_params)
        is_traced = torch.compiler.is_compiling()  # guards take the place of the memoised plans
        q: Any = query_layer  # tensors, as _resolve makes sure
        k: Any = key_layer
        v: Any = value_layer
        if qkv_layer is not None or kv_layer is not None:
            q, k, v = split_packed(
                query_layer, key_layer, value_layer, qkv_layer, kv_layer, qkv_interleave_dim
            )
        if self.cp_group is not self._accepted_cp_group:
            self._accept_cp_group(self.cp_group)
        spec = (
            self.qkv_format if qkv_format is None else qkv_format,
            self.attn_mask_type if attn_mask_type is None else attn_mask_type,
            self.window_size if window_size is None else window_size,
            self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal,
            core_attention_bias_type,
            max_seqlen_q,
            max_seqlen_kv,
        )
        operands = None
        if (
            attention_mask is not None
            or cu_seqlens_q is not None
            or cu_seqlens_kv is not None
            or core_attention_bias is not None
            or alibi_slopes is not None
            or self.softmax_type != "vanilla"
        ):
            operands = AttentionOperands(
                attention_mask,
                cu_seqlens_q,
                cu_seqlens_kv,
                cu_seqlens_q_padded,
                cu_seqlens_kv_padded,
                core_attention_bias,
                alibi_slopes,
                self.softmax_offset,
            )
        plan = key = boundary = None
        if not is_traced:
            # A module that has run in FP8 asks its log whether this call repeats such a forward.
            if _may_run_fp8_attention() or self._step is not None:
                boundary = self._float8_boundary(q)
                if boundary is not None and isinstance(q, Float8Tensor):
                    q, k, v = decode_parts(_WHO, (q, k, v), boundary)
            plan, key = self._known_plan(q, k, v, operands, spec)
        if plan is None:
            plan = self._resolve(q, k, v, operands, spec)
            if key is not None:
                self._remember(key, plan)
        if torch.is_autocast_enabled(plan.device_type):
            q, k, v, plan = self._under_autocast(q, k, v, operands, spec, plan)
        if boundary is not None:
            options = Float8Call(plan, boundary, fp8_output, bf16_backward)
            plan = dataclasses.replace(plan, run=partial(self._run_in_float8, options))
        if (
            plan.has_dropout
            and self.get_rng_state_tracker is not None
            and not self.sequence_parallel
        ):
            with self.get_rng_state_tracker().fork():
                return self._run(plan, q, k, v, operands, checkpoint_core_attention)
        if checkpoint_core_attention:
            return self._run(plan, q, k, v, operands, True)
        return plan.run(q, k, v, operands)

    def _known_plan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
        spec: tuple[Any, ...],
    ) -> tuple[AttentionPlan | None, tuple[Any, ...] | None]:
        """(the plan of an equal call, the key to remember it by), None for what is not there."""
        try:
            key = (
                spec,
                q.shape,
                k.shape,
                v.shape,
                q.dtype,
                k.dtype,
                v.dtype,
                q.device,
                k.device,
                v.device,
                None if operands is None else _signature(operands),
                self.attention_dropout if self.training else 0.0,
                self.softmax_scale,
                self.return_max_logit,
                self.softmax_type,
            )
            return self._plans.get(key), key
        except (AttributeError, TypeError):  # no tensor, or a window given as a list
            return None, None

    @staticmethod
    def _run(
        plan: AttentionPlan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
        recompute: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if not recompute:
            return plan.run(q, k, v, operands)
        # The tracker's fork is outside: the checkpoint then saves and restores the generator state
        # inside the fork.
        return checkpoint(
            plan.run, q, k, v, operands, use_reentrant=False, preserve_rng_state=plan.has_dropout
        )

    def _under_autocast(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
        spec: tuple[Any, ...],
        plan: AttentionPlan,
    ) -> tuple[Tensor, Tensor, Tensor, AttentionPlan]:
        """Cast the inputs as autocast casts those of torch's own attention operator."""
        dtype = torch.get_autocast_dtype(plan.device_type)
        if plan.params.dtype in (dtype, torch.float64):
            return q, k, v, plan
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        key = ("autocast", dtype, q.shape, k.shape, v.shape, plan.params)
        cast_plan = self._plans.get(key)
        if cast_plan is None:
            cast_plan = self._resolve(q, k, v, operands, spec)
            self._remember(key, cast_plan)
        return q, k, v, cast_plan

    def _remember(self, key: tuple[Any, ...], plan: AttentionPlan) -> None:
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan

    def _resolve(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
        spec: tuple[Any, ...],
    ) -> AttentionPlan:
        """Check a call signature and choose its backend."""
        params = self._problem(q, k, v, operands, _CallSpec(*spec))
        run = compile_first(params, self._switches)
        return AttentionPlan(
            run, params, params.needs_operands, params.device.type, params.attention_dropout > 0.0
        )

    def _problem(
        self, q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None, spec: _CallSpec
    ) -> AttentionParams:
        heads, groups = self._heads, self.num_gqa_groups_per_partition
        dims = (self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v)
        check_qkv(q, k, v, spec.qkv_format, heads, groups, dims)
        who = "DotProductAttention.forward"
        rule = resolve_mask_rule(
            spec.attn_mask_type, spec.window_size, spec.bottom_right_diagonal, who
        )
        operands = AttentionOperands() if operands is None else operands
        packed = spec.qkv_format == "thd"
        if packed:
            check_packed(rule.name, operands.cu_seqlens_q, operands.cu_seqlens_kv)
        lengths = {
            "cu_seqlens_q": operands.cu_seqlens_q,
            "cu_seqlens_kv": operands.cu_seqlens_kv,
            "cu_seqlens_q_padded": operands.cu_seqlens_q_padded,
            "cu_seqlens_kv_padded": operands.cu_seqlens_kv_padded,
        }
        batch = None if packed else q.shape[1 if spec.qkv_format == "sbhd" else 0]
        sequences = check_cu_seqlens(lengths, batch)
        batch = sequences if batch is None else batch
        assert batch is not None  # a packed batch has lengths
        check_bias(spec.bias_type, operands.bias, q.device)
        check_alibi_slopes(spec.bias_type, operands.alibi_slopes, batch, heads)
        if packed:
            s_q, s_kv = spec.max_seqlen_q, spec.max_seqlen_kv
            for name, longest in (("max_seqlen_q", s_q), ("max_seqlen_kv", s_kv)):
                if longest is not None:
                    check_int(who, name, longest, minimum=0)
        else:
            axis = 0 if spec.qkv_format == "sbhd" else 1
            s_q, s_kv = q.shape[axis], k.shape[axis]
        bias = operands.bias
        return AttentionParams(
            qkv_format=spec.qkv_format,
            dtype=q.dtype,
            device=q.device,
            batch_size=batch,
            num_heads=heads,
            num_gqa_groups=groups,
            head_dim_qk=dims[0],
            head_dim_v=dims[1],
            max_seqlen_q=None if s_q is None else int(s_q),
            max_seqlen_kv=None if s_kv is None else int(s_kv),
            mask=rule,
            softmax_scale=self.softmax_scale,
            attention_dropout=self.attention_dropout if self.training else 0.0,
            softmax_type=self.softmax_type,
            core_attention_bias_type=spec.bias_type,
            core_attention_bias_dtype=None if bias is None else bias.dtype,
            return_max_logit=self.return_max_logit,
            cu_seqlens_on_host=packed
            and all(x is None or x.device.type == "cpu" for x in lengths.values()),
            has_cu_seqlens=operands.cu_seqlens_q is not None and operands.cu_seqlens_kv is not None,
            deterministic=self.deterministic,
            first_head=self._first_head(spec.bias_type, operands.alibi_slopes),
            total_heads=self.num_attention_heads,
        )

    def _first_head(self, bias_type: str, slopes: Tensor | None) -> int:
        """ALiBi slopes belong to heads of the whole model, so a rank must know which heads it
        holds.
        """
        if bias_type != "alibi" or slopes is not None or self.tp_size == 1:
            return 0
        if self.tp_group is None:
            raise ValueError(
                f"DotProductAttention.forward: alibi_slopes is None with tp_size={self.tp_size} "
                "and no tp_group; the slopes of this rank's heads are unknown. Pass tp_group to "
                "the constructor, or alibi_slopes."
            )
        return torch.distributed.get_rank(self.tp_group) * self._heads

    def explain_backends(self, *args: Any, **kwargs: Any) -> dict[str, str | None]:
        """Take the arguments of :meth:`forward`; for each backend in order, None when it accepts,
        else its reason.
        """
        bound = inspect.signature(DotProductAttention.forward).bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        q, k, v = given["query_layer"], given["key_layer"], given["value_layer"]
        if given["qkv_layer"] is not None or given["kv_layer"] is not None:
            q, k, v = split_packed(
                q, k, v, given["qkv_layer"], given["kv_layer"], given["qkv_interleave_dim"]
            )
        own = ("qkv_format", "attn_mask_type", "window_size", "bottom_right_diagonal")
        spec = _CallSpec(
            **{name: getattr(self, name) if given[name] is None else given[name] for name in own},
            bias_type=given["core_attention_bias_type"],
            max_seqlen_q=given["max_seqlen_q"],
            max_seqlen_kv=given["max_seqlen_kv"],
        )
        lengths = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
        operands = AttentionOperands(
            attention_mask=given["attention_mask"],
            **{name: given[name] for name in lengths},
            bias=given["core_attention_bias"],
            alibi_slopes=given["alibi_slopes"],
            softmax_offset=self.softmax_offset,
        )
        params = self._problem(q, k, v, operands, spec)
        float8 = self._explain_float8(params, bf16_backward=given["bf16_backward"])
        return backend_reasons(params, self._switches) if float8 is None else float8

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load; the extra state may be absent, or stand under a key of releases before 1.8."""
        key = f"{prefix}_extra_state"
        old = state_dict.pop(f"{prefix}fused_attention._extra_state", None)
        if old is not None:
            state_dict.setdefault(key, old)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if key in missing_keys:
            missing_keys.remove(key)

    def __getstate__(self) -> dict[str, Any]:
        """Plans hold functions, which neither copy nor pickle, and are rebuilt on demand."""
        return {**super().__getstate__(), "_plans": {}}


def _signature(operands: AttentionOperands) -> tuple[Any, ...]:
    """What the checks and the choice of a backend depend on among the operands."""
    tensors = (
        operands.cu_seqlens_q,
        operands.cu_seqlens_kv,
        operands.cu_seqlens_q_padded,
        operands.cu_seqlens_kv_padded,
        operands.bias,
        operands.alibi_slopes,
    )
    return tuple(
        None if x is None else (x.shape, x.dtype, x.device, x.requires_grad) for x in tensors
    )


def _head_sizes(kv_channels: int | tuple[int, int]) -> tuple[int, int]:
    """``(d_qk, d_v)`` from the argument `kv_channels`."""
    if not isinstance(kv_channels, (tuple, list)):
        size = check_int(_WHO, "kv_channels", kv_channels)
        return size, size
    if len(kv_channels) != 2:
        raise ValueError(
            f"{_WHO}: kv_channels is {received(kv_channels)}; it must be one head size, or a pair "
            "(d_qk, d_v)."
        )
    d_qk, d_v = (check_int(_WHO, f"kv_channels[{i}]", x) for i, x in enumerate(kv_channels))
    return d_qk, d_v


def _refuse_unsupported(inference_params: Any) -> None:
    if inference_params is not None:
        raise NotImplementedError(
            "DotProductAttention.forward: inference_params is given; this version has no KV cache, "
            "it must be None. Pass the whole sequence, or keep your own cache and use "
            "causal_bottom_right."
        )
    raise NotImplementedError(
        "DotProductAttention.forward: score_mod (or one of its companions) is given; this version "
        "has no custom score functions, it must be None. Express it as core_attention_bias or an "
        "arbitrary mask."
    )
