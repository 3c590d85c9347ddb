# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Multi-head attention: projections, rotary embeddings, QK normalization, core attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments import (
    check_callables,
    check_choice,
    check_epsilon,
    check_int,
    check_params_dtype,
    check_probability,
    check_tensor,
    group_size,
    tensor_parallel_size,
)
from ..constants import AttnTypes
from ..cpp_extensions.attention import split_heads
from ..cpp_extensions.state import is_in_backward, is_region_quantizing, may_run_fp8_attention
from ..module.base import resolve_device
from ..module.fast_call import FastCallModule
from ..module.layernorm import LayerNorm
from ..module.layernorm_linear import LayerNormLinear
from ..module.linear import Linear
from ..module.rmsnorm import RMSNorm
from ..module.sharding import init_by_rank
from ..ops.basic.l2normalization import L2Normalization
from ..quantization import FP8GlobalStateManager
from ..tensor import Float8Tensor
from .dot_product_attention.dot_product_attention import DotProductAttention
from .fp8.boundary import Boundary, decode, mark_query
from .masks import check_window, normalize_mask_type, resolve_mask_rule
from .problem import QKV_FORMATS
from .rope import apply_rotary_pos_emb

__all__ = ["MultiheadAttention"]

_WHO = "MultiheadAttention"
_QK_NORMS = ("L2Normalization", "RMSNorm", "LayerNorm")


def default_init(weight: Tensor) -> None:
    """Normal distribution with standard deviation 0.023, in place."""
    torch.nn.init.normal_(weight, mean=0.0, std=0.023)


def check_attention_sizes(
    who: str,
    hidden_size: int,
    num_attention_heads: int,
    num_gqa_groups: int | None,
    kv_channels: int | None,
    tp_size: int,
) -> tuple[int, int]:
    """Check the sizes of attention against each other; key and value heads, and the head size."""
    hidden = check_int(who, "hidden_size", hidden_size)
    heads = check_int(who, "num_attention_heads", num_attention_heads)
    groups = heads if num_gqa_groups is None else check_int(who, "num_gqa_groups", num_gqa_groups)
    if heads % groups != 0 or groups % tp_size != 0:
        raise ValueError(
            f"{who}: num_gqa_groups is {groups} with num_attention_heads={heads} and "
            f"tp_size={tp_size}; it must divide the heads and be divisible by tp_size."
        )
    if kv_channels is not None:
        return groups, check_int(who, "kv_channels", kv_channels)
    if hidden % heads != 0:
        raise ValueError(
            f"{who}: hidden_size is {hidden} with num_attention_heads={heads}; the heads must "
            "divide it. Choose another number of heads, or pass the head size as kv_channels."
        )
    return groups, hidden // heads


def _check_choices(
    attention_type: str, qkv_format: str, normalization: str, qk_norm_type: str | None
) -> None:
    for argument, value, choices in (
        ("attention_type", attention_type, AttnTypes),
        ("qkv_format", qkv_format, QKV_FORMATS),
        ("normalization", normalization, ("LayerNorm", "RMSNorm")),
        ("qk_norm_type", qk_norm_type, (None, *_QK_NORMS)),
    ):
        check_choice(_WHO, argument, value, choices)


_MAX_ACCEPTED_CALLS = 256


def remember(accepted: set[Any], call: Any) -> None:
    """Note a signature whose checks passed; the set stays small when shapes keep changing."""
    if len(accepted) >= _MAX_ACCEPTED_CALLS:
        accepted.clear()
    accepted.add(call)


def check_hidden(who: str, name: str, x: Any, hidden_size: int, qkv_format: str) -> None:
    """An input ``[s, b, hidden]``, ``[b, s, hidden]`` or ``[t, hidden]``. (Whether its dtype and
    device fit the parameters is for the projections to say.)
    """
    shape = check_tensor(who, name, x).shape
    rank = 2 if qkv_format == "thd" else 3
    if len(shape) != rank or shape[-1] != hidden_size:
        form = f"({', '.join(qkv_format[: rank - 1])}, {hidden_size})"
        raise ValueError(
            f"{who}: {name} has shape {tuple(shape)}; {qkv_format} needs {rank} dimensions, "
            f"{form}, the last one being hidden_size."
        )
    if x.device.type == "meta":
        raise ValueError(
            f"{who}: {name} is on meta; a tensor with data is required. Move it, or make it, on "
            "a real device."
        )
    if not x.is_floating_point() or x.dtype.itemsize < 2:
        raise TypeError(
            f"{who}: {name} has dtype {x.dtype}; it must be FP32, BF16 or FP16. Cast it first."
        )


def check_placement(who: str, device: Any, fuse_qkv_params: bool) -> None:
    """What the projections would refuse, in the name of the module that the caller makes."""
    resolve_device(device, who)
    if FP8GlobalStateManager.with_fp8_parameters() and not fuse_qkv_params:
        raise RuntimeError(
            f"{who}: fuse_qkv_params is {fuse_qkv_params} inside quantized_model_init; query, key "
            "and value would be slices of one weight, which is quantized as a whole. Pass "
            "fuse_qkv_params=True."
        )


class MultiheadAttention(FastCallModule):
    """Attention with its input and output projections.

    Parameters
    ----------
    hidden_size : int
        Size of the input and the output.
    num_attention_heads : int
        Query heads of the whole model.
    kv_channels : int, optional
        Head size, default ``hidden_size // num_attention_heads``.
    attention_dropout : float
        Dropout probability of the softmax output.
    layernorm_epsilon : float
        Epsilon of the input norm.
    init_method, output_layer_init_method : callable, optional
        Initialize the input and output projection weights in place, default normal(0, 0.023).
    layer_number : int, optional
        1-based.
    attn_mask_type, window_size, bottom_right_diagonal
        As in :class:`DotProductAttention`.
    tp_group, tp_size, set_parallel_mode, sequence_parallel
        Tensor parallelism; `set_parallel_mode` splits the projections by heads.
    num_gqa_groups : int, optional
        Key and value heads.
    return_bias : bool
        Return the bias of the output projection instead of adding it.
    input_layernorm : bool
        Normalize the input first (inside the query-key-value projection).
    return_layernorm_output : bool
        Return that normalized input too; needs `input_layernorm`.
    fuse_wgrad_accumulation : bool
        The projections add their weight gradients to ``main_grad``; see :class:`Linear`.
    get_rng_state_tracker : callable, optional
        Returns the tracker under which weights and dropout masks are drawn.
    params_dtype : torch.dtype, optional
        Of the parameters, default ``torch.get_default_dtype()``.
    attention_type : {"self", "cross"}
        Whether keys and values are projected from the input or from `encoder_output`.
    fuse_qkv_params : bool
        One parameter for query, key and value instead of three. Needed inside
        ``quantized_model_init``.
    zero_centered_gamma : bool
        The weight of the input norm is stored minus one and starts at 0.
    qkv_weight_interleaved : bool
        Rows of the fused weight are ``[g, h / g + 2, d]`` instead of ``[h / g + 2, g, d]``; without
        `fuse_qkv_params` the three parameters stand one after the other.
    rotary_pos_interleaved : bool
        Rotary embeddings pair neighbouring channels.
    ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad, ub_bulk_wgrad : bool
        Overlap of communication with several ranks; no effect on one.
    bias : bool
        Whether the projections have biases.
    normalization : {"LayerNorm", "RMSNorm"}
        Kind of the input norm.
    device : torch.device or str
        Of the parameters; "cuda" means the CPU where there is no CUDA.
    name : str, optional
        Prefix of the children's names, for messages and debugging.
    qk_norm_type : {"L2Normalization", "RMSNorm", "LayerNorm"}, optional
        Normalize query and key over the head size.
    qk_norm_eps : float
        Epsilon of these norms.
    qk_norm_before_rope : bool
        Normalize before the rotary embeddings instead of after them.
    qkv_format : {"sbhd", "bshd", "thd"}
        Format of the input: ``[s, b, hidden]``, ``[b, s, hidden]`` or ``[t, hidden]``.
    seq_length, micro_batch_size : int, optional
        Accepted; nothing needs warming up.
    softmax_type : {"vanilla", "off-by-one", "learnable"}
        See :class:`DotProductAttention`.

    Raises
    ------
    ValueError, TypeError
        For arguments outside the above.
    RuntimeError
        Inside ``quantized_model_init`` without `fuse_qkv_params`.
    """

    def __init__(  # noqa: PLR0913 - public signature
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Callable[[Tensor], Any] | None = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        num_gqa_groups: int | None = None,
        fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: torch.device | str = "cuda",
        qkv_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        softmax_type: str = "vanilla",
    ) -> None:
        super().__init__()
        self.name = name
        self.tp_group = tp_group
        self.tp_size = tensor_parallel_size(_WHO, tp_size, tp_group)
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        _check_choices(attention_type, qkv_format, normalization, qk_norm_type)
        groups, head_size = check_attention_sizes(
            _WHO, hidden_size, num_attention_heads, num_gqa_groups, kv_channels, self.tp_size
        )
        check_placement(_WHO, device, fuse_qkv_params)
        if layer_number is not None:
            check_int(_WHO, "layer_number", layer_number)
        check_probability(_WHO, "attention_dropout", attention_dropout)
        resolve_mask_rule(attn_mask_type, window_size, bottom_right_diagonal, _WHO)
        check_epsilon(_WHO, "layernorm_epsilon", layernorm_epsilon)
        check_epsilon(_WHO, "qk_norm_eps", qk_norm_eps)
        check_params_dtype(_WHO, "params_dtype", params_dtype)
        check_callables(
            _WHO,
            init_method=init_method,
            output_layer_init_method=output_layer_init_method,
            get_rng_state_tracker=get_rng_state_tracker,
        )
        self.hidden_size = hidden_size
        self.qkv_format = qkv_format
        self.attn_mask_type = attn_mask_type
        self.window_size = window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.layer_number = 1 if layer_number is None else layer_number
        self.attention_type = attention_type
        self.input_layernorm = input_layernorm
        self.return_bias = return_bias
        self.return_layernorm_output = return_layernorm_output and input_layernorm
        self.fuse_qkv_params = fuse_qkv_params
        self.qkv_weight_interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.rotary_pos_interleaved = rotary_pos_interleaved
        self.qk_norm_type = qk_norm_type
        self.qk_norm_before_rope = qk_norm_before_rope
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = groups
        self.hidden_size_per_attention_head = head_size
        self.num_attention_heads_per_partition = num_attention_heads // self.tp_size
        self.num_gqa_groups_per_partition = groups // self.tp_size
        self.params_dtype = torch.get_default_dtype() if params_dtype is None else params_dtype

        init_method = default_init if init_method is None else init_method
        out_init = default_init if output_layer_init_method is None else output_layer_init_method
        common: dict[str, Any] = {
            "tp_group": tp_group,
            "tp_size": self.tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": self.sequence_parallel,
            "params_dtype": self.params_dtype,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "bias": bias,
            "device": device,
        }
        input_projection: dict[str, Any] = {
            **common,
            "init_method": init_method,
            "parallel_mode": "column" if set_parallel_mode else None,
            "ub_name": "qkv",
            "ub_overlap_ag": ub_overlap_ag,
            "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad,
            "ub_bulk_dgrad": ub_bulk_dgrad,
            "ub_bulk_wgrad": ub_bulk_wgrad,
        }
        norm: dict[str, Any] = {
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "return_layernorm_output": self.return_layernorm_output,
            "zero_centered_gamma": zero_centered_gamma,
        }
        self._make_input_projections(hidden_size, input_projection, norm)
        is_shared = set_parallel_mode and self.tp_size > 1
        self._make_qk_norms(qk_norm_eps, device, is_shared=is_shared)
        self._accepted_calls: set[Any] = set()
        self._kept_fp8 = False
        self.core_attention = DotProductAttention(
            num_attention_heads,
            head_size,
            num_gqa_groups=groups,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            attn_mask_type=attn_mask_type,
            window_size=window_size,
            bottom_right_diagonal=bottom_right_diagonal,
            sequence_parallel=self.sequence_parallel,
            tp_size=self.tp_size,
            get_rng_state_tracker=get_rng_state_tracker,
            tp_group=tp_group,
            layer_number=self.layer_number,
            attention_type=attention_type,
            softmax_type=softmax_type,
            name=None if name is None else f"{name}.core_attention",
        )
        self.proj = Linear(
            num_attention_heads * head_size,
            hidden_size,
            **common,
            init_method=out_init,
            return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None,
            ub_name="proj",
            ub_overlap_rs=ub_overlap_rs,
            ub_overlap_ag=ub_overlap_ag,
            name=None if name is None else f"{name}.proj",
        )

    def _make_input_projections(
        self, hidden_size: int, options: dict[str, Any], norm: dict[str, Any]
    ) -> None:
        """`qkv` for self attention, or a query and a `key_value` projection, maybe with a norm."""
        query = self.num_attention_heads * self.hidden_size_per_attention_head
        key = self.num_gqa_groups * self.hidden_size_per_attention_head

        def parts(**rows: int) -> dict[str, Any]:
            if not self.fuse_qkv_params:
                return {"parameters_split": rows}
            if self.qkv_weight_interleaved or len(rows) == 1 or options["parallel_mode"] is None:
                return {}
            init_method = init_by_rank(options["init_method"], list(rows.values()), self.tp_size)
            return {"init_method": init_method}

        def named(child: str) -> dict[str, Any]:
            return {} if self.name is None else {"name": f"{self.name}.{child}"}

        def normalized(child: str, rows: int, split: dict[str, Any]) -> None:
            module = LayerNormLinear(
                hidden_size, rows, **norm, **{**options, **split}, **named(child), return_bias=False
            )
            self.add_module(child, module)

        def plain(child: str, rows: int, split: dict[str, Any]) -> None:
            module = Linear(
                hidden_size, rows, **{**options, **split}, **named(child), return_bias=False
            )
            self.add_module(child, module)

        if self.attention_type == "self":
            split = parts(query=query, key=key, value=key)
            if self.input_layernorm:
                normalized("layernorm_qkv", query + 2 * key, split)
            else:
                plain("qkv", query + 2 * key, split)
            return
        split = parts(query=query)
        if self.input_layernorm:
            normalized("layernorm_query", query, split)
        else:
            plain("query_layer", query, split)
        plain("key_value", 2 * key, parts(key=key, value=key))

    def _make_qk_norms(self, eps: float, device: torch.device | str, *, is_shared: bool) -> None:
        kind = self.qk_norm_type
        self.q_norm: torch.nn.Module | None = None
        self.k_norm: torch.nn.Module | None = None
        if kind is None:
            return
        if kind == "L2Normalization":
            self.q_norm = self.k_norm = L2Normalization(eps=eps)  # nothing to learn: one will do
        else:
            norm = RMSNorm if kind == "RMSNorm" else LayerNorm
            options: dict[str, Any] = {"eps": eps, "device": device, "dtype": self.params_dtype}
            if is_shared:  # each rank has the gradient of its own heads: trainers add them up
                options["sequence_parallel"] = True
            self.q_norm = norm(self.hidden_size_per_attention_head, **options)
            self.k_norm = norm(self.hidden_size_per_attention_head, **options)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Set the tensor-parallel group, here and in every child that takes one."""
        if tp_group is not None:
            group_size(f"{_WHO}.set_tensor_parallel_group", "tp_group", tp_group)
        self.tp_group = tp_group
        self.core_attention.tp_group = tp_group
        for child in self.children():
            setter = getattr(child, "set_tensor_parallel_group", None)
            if callable(setter):
                setter(tp_group)

    def set_context_parallel_group(
        self,
        cp_group: Any,
        cp_global_ranks: Sequence[int] | None,
        cp_stream: Any,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Set the context-parallel group of the core attention; more than one rank is refused."""
        self.core_attention.set_context_parallel_group(
            cp_group, cp_global_ranks, cp_stream, cp_comm_type
        )

    def forward(  # noqa: C901, PLR0913 - public signature, one branch per optional argument
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        encoder_output: Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: Any = None,
        rotary_pos_emb: Tensor | tuple[Tensor, Tensor] | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        fast_zero_fill: bool = True,
        pad_between_seqs: bool | None = None,
    ) -> Tensor | tuple[Tensor | None, ...]:
        """Attend.

        Parameters
        ----------
        hidden_states : torch.Tensor
            ``[s, b, hidden]``, ``[b, s, hidden]`` or ``[t, hidden]``, by `qkv_format`.
        encoder_output : torch.Tensor, optional
            What keys and values are made of, for cross attention.
        rotary_pos_emb : torch.Tensor or pair, optional
            Angles for query and key, or one for each.
        is_first_microbatch : bool, optional
            Passed to the projections (weight caching).

        The remaining arguments are those of :meth:`DotProductAttention.forward`.

        Returns
        -------
        torch.Tensor or tuple
            Same shape as `hidden_states`; with `return_bias` and `return_layernorm_output` a tuple
            ``(out[, bias][, normalized input])``.
        """
        if inference_params is not None:
            raise NotImplementedError(
                "MultiheadAttention.forward: inference_params is given; this version has no KV "
                "cache, it must be None. Pass the whole sequence."
            )
        is_traced = torch.compiler.is_compiling()  # then guards do what is remembered here
        try:  # a call like one that was accepted needs no second look
            call = (
                hidden_states.shape,
                hidden_states.dtype,
                hidden_states.device,
                attn_mask_type,
                window_size,
                self.qkv_format,
            )
            is_known = not is_traced and call in self._accepted_calls
        except (AttributeError, TypeError):  # no tensor, or a window given as a list
            call, is_known = None, False
        if not is_known or rotary_pos_emb is not None or self.attention_type == "cross":
            self._check_call(
                hidden_states, encoder_output, attn_mask_type, window_size, rotary_pos_emb
            )
            if call is not None and not is_traced:
                remember(self._accepted_calls, call)
        keeps_fp8 = (
            not is_traced and (may_run_fp8_attention() or self._kept_fp8) and self._keeps_fp8()
        )
        if self.attention_type == "self":
            # Rotations and norms compute: they and what follows them get values of the layer's
            # dtype.
            has_fp8_inputs = keeps_fp8 and rotary_pos_emb is None and self.qk_norm_type is None
            query, key, value, norm_out = self._project_self(
                hidden_states, is_first_microbatch, has_fp8_inputs
            )
        else:
            query, key, value, norm_out = self._project_cross(
                hidden_states, encoder_output, is_first_microbatch
            )
        children: dict[str, Any] = self._modules  # nn.Module.__getattr__ is slow
        has_qk_norm = self.qk_norm_type is not None
        if has_qk_norm and self.qk_norm_before_rope:
            query, key = children["q_norm"](query), children["k_norm"](key)
        if rotary_pos_emb is not None:
            lengths_q, lengths_kv = cu_seqlens_q, cu_seqlens_kv
            if pad_between_seqs:
                lengths_q, lengths_kv = cu_seqlens_q_padded, cu_seqlens_kv_padded
            query, key = self._rotate(query, key, rotary_pos_emb, lengths_q, lengths_kv)
        if has_qk_norm and not self.qk_norm_before_rope:
            query, key = children["q_norm"](query), children["k_norm"](key)
        options: dict[str, Any] = {
            "qkv_format": self.qkv_format,
            "attn_mask_type": self.attn_mask_type if attn_mask_type is None else attn_mask_type,
            "window_size": self.window_size if window_size is None else window_size,
            "bottom_right_diagonal": (
                self.bottom_right_diagonal
                if bottom_right_diagonal is None
                else bottom_right_diagonal
            ),
        }
        # What is at its default is left out: a call with twenty keywords costs 2 us more.
        if core_attention_bias_type != "no_bias" or core_attention_bias is not None:
            options["core_attention_bias_type"] = core_attention_bias_type
            options["core_attention_bias"] = core_attention_bias
        if checkpoint_core_attention:
            options["checkpoint_core_attention"] = checkpoint_core_attention
        if alibi_slopes is not None:
            options["alibi_slopes"] = alibi_slopes
        if cu_seqlens_q is not None or cu_seqlens_kv is not None:
            options["cu_seqlens_q"] = cu_seqlens_q
            options["cu_seqlens_kv"] = cu_seqlens_kv
        if cu_seqlens_q_padded is not None or cu_seqlens_kv_padded is not None:
            options["cu_seqlens_q_padded"] = cu_seqlens_q_padded
            options["cu_seqlens_kv_padded"] = cu_seqlens_kv_padded
        if max_seqlen_q is not None or max_seqlen_kv is not None:
            options["max_seqlen_q"] = max_seqlen_q
            options["max_seqlen_kv"] = max_seqlen_kv
        if fast_zero_fill is not True or pad_between_seqs is not None:
            options["fast_zero_fill"] = fast_zero_fill
            options["pad_between_seqs"] = pad_between_seqs
        if keeps_fp8:
            options["fp8_output"] = True
        context = children["core_attention"](query, key, value, attention_mask, **options)
        if keeps_fp8:
            projected = children["proj"](context, is_first_microbatch, fp8_grad=True)
        else:
            projected = children["proj"](context, is_first_microbatch)
        if not (self.return_bias or self.return_layernorm_output):
            return projected
        outputs = tuple(projected) if self.return_bias else (projected,)
        return (*outputs, norm_out) if self.return_layernorm_output else outputs

    def _check_call(
        self,
        hidden_states: Any,
        encoder_output: Any,
        attn_mask_type: str | None,
        window_size: tuple[int, int] | None,
        rotary_pos_emb: Any,
    ) -> None:
        """Refuse what is wrong before the projections record anything of it."""
        who = "MultiheadAttention.forward"
        hidden, qkv_format = self.hidden_size, self.qkv_format
        check_hidden(who, "hidden_states", hidden_states, hidden, qkv_format)
        if self.attention_type == "cross":
            if encoder_output is None:
                raise ValueError(
                    f"{who}: encoder_output is None; cross attention makes keys and values of it."
                )
            check_hidden(who, "encoder_output", encoder_output, hidden, qkv_format)
        if attn_mask_type is not None:
            normalize_mask_type(attn_mask_type, who)
        if window_size is not None:
            check_window(window_size, who)
        if isinstance(rotary_pos_emb, (tuple, list)):
            if len(rotary_pos_emb) != 2:
                raise ValueError(
                    f"{who}: rotary_pos_emb is a sequence of {len(rotary_pos_emb)}; it must be one "
                    "tensor of angles, or a pair for query and key."
                )
            for i, angles in enumerate(rotary_pos_emb):
                check_tensor(who, f"rotary_pos_emb[{i}]", angles)
        elif rotary_pos_emb is not None:
            check_tensor(who, "rotary_pos_emb", rotary_pos_emb)

    def _heads(self, x: Tensor, parts: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Split projected channels into parts of ``[.., heads, d]``, `parts` heads per group."""
        groups, size = self.num_gqa_groups_per_partition, self.hidden_size_per_attention_head
        if not torch.compiler.is_compiling():
            native = split_heads(x, groups, size, self.qkv_weight_interleaved, *parts)
            if native is not None:
                return native
        leading = x.shape[:-1]
        if not self.qkv_weight_interleaved:
            heads = x.view(*leading, sum(parts) * groups, size)
            return heads.split_with_sizes([part * groups for part in parts], -2)
        split = x.view(*leading, groups, sum(parts), size).split_with_sizes(parts, -2)
        return tuple(
            piece.reshape(*leading, part * groups, size)
            for piece, part in zip(split, parts, strict=True)
        )

    def _keeps_fp8(self) -> bool:
        """Whether query, key, value and output pass between the modules in FP8 (``fp8_mha``).

        Recomputation may run outside the region: there it is as in the latest forward.
        """
        if is_in_backward() and not is_region_quantizing():
            return self._kept_fp8
        settings = self.core_attention._float8
        self._kept_fp8 = may_run_fp8_attention() and settings.wants_fp8_boundaries(
            FP8GlobalStateManager.get_fp8_recipe()
        )
        return self._kept_fp8

    def _project_self(
        self, hidden_states: Tensor, is_first_microbatch: bool | None, has_fp8_output: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        norm_out = None
        children: dict[str, Any] = self._modules
        project = children["layernorm_qkv" if self.input_layernorm else "qkv"]
        if has_fp8_output:
            mixed = project(hidden_states, is_first_microbatch, fp8_output=True)
        else:
            mixed = project(hidden_states, is_first_microbatch)
        if self.return_layernorm_output:
            mixed, norm_out = mixed
        boundary = None
        if has_fp8_output and isinstance(mixed, Float8Tensor):
            boundary = Boundary()
            mixed = decode(mixed, boundary)
        repeat = self.num_attention_heads // self.num_gqa_groups
        query, key, value = self._heads(mixed, (repeat, 1, 1))
        if boundary is not None:
            mark_query(query, boundary)
        return query, key, value, norm_out

    def _project_cross(
        self, hidden_states: Tensor, encoder_output: Tensor | None, is_first_microbatch: bool | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        norm_out = None
        children: dict[str, Any] = self._modules
        if self.input_layernorm:
            query = children["layernorm_query"](hidden_states, is_first_microbatch)
            if self.return_layernorm_output:
                query, norm_out = query
        else:
            query = children["query_layer"](hidden_states, is_first_microbatch)
        size = self.hidden_size_per_attention_head
        query = query.view(*query.shape[:-1], self.num_attention_heads_per_partition, size)
        key_value = children["key_value"](encoder_output, is_first_microbatch)
        key, value = self._heads(key_value, (1, 1))
        return query, key, value, norm_out

    def _rotate(
        self,
        query: Tensor,
        key: Tensor,
        rotary_pos_emb: Tensor | tuple[Tensor, Tensor],
        lengths_q: Tensor | None,
        lengths_kv: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(rotary_pos_emb, Tensor):
            angles_q = angles_k = rotary_pos_emb
        else:
            angles_q, angles_k = rotary_pos_emb
        packed = self.qkv_format == "thd"
        options: dict[str, Any] = {
            "tensor_format": self.qkv_format,
            "interleaved": self.rotary_pos_interleaved,
            "fused": True,
        }
        query = apply_rotary_pos_emb(
            query, angles_q, cu_seqlens=lengths_q if packed else None, **options
        )
        key = apply_rotary_pos_emb(
            key, angles_k, cu_seqlens=lengths_kv if packed else None, **options
        )
        return query, key
