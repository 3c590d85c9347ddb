# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""TransformerLayer: attention and MLP with their norms, residual branches and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import (
    check_callables,
    check_choice,
    check_epsilon,
    check_int,
    check_params_dtype,
    check_probability,
    check_share,
    check_tensor,
    group_size,
    tensor_parallel_size,
)
from .attention.masks import check_window, normalize_mask_type
from .attention.multi_head_attention import (
    MultiheadAttention,
    check_attention_sizes,
    check_hidden,
    check_placement,
    default_init,
    remember,
)
from .attention.problem import QKV_FORMATS
from .constants import LayerTypes
from .module.fast_call import FastCallModule
from .module.layernorm import LayerNorm
from .module.layernorm_mlp import LayerNormMLP
from .module.rmsnorm import RMSNorm

__all__ = ["DropPath", "TransformerLayer"]

_WHO = "TransformerLayer"


class DropPath(torch.nn.Module):
    """Drop whole samples of a residual branch (stochastic depth, arXiv:1603.09382).

    In training each index of dimension 0 is dropped with probability `drop_prob`, and kept ones
    are multiplied by ``1 / (1 - drop_prob)``.
    """

    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = check_share("DropPath", "drop_prob", drop_prob)

    def forward(self, hidden_state: Tensor) -> Tensor:
        """Same shape and dtype; the input itself outside training."""
        if check_tensor("DropPath.forward", "hidden_state", hidden_state).dim() == 0:
            raise ValueError(
                "DropPath.forward: hidden_state has shape (); it must have a first "
                "dimension, whose indices are dropped."
            )
        if self.drop_prob == 0.0 or not self.training:
            return hidden_state
        keep = 1.0 - self.drop_prob
        shape = (hidden_state.shape[0],) + (1,) * (hidden_state.dim() - 1)
        kept = torch.rand(shape, device=hidden_state.device) < keep
        return hidden_state * (kept / keep).to(hidden_state.dtype)


class TransformerLayer(FastCallModule):
    """One layer of a transformer.

    Pre-norm (default)::

        x = x + dropout(attention(norm(x)))
        x = x + dropout(cross_attention(norm(x), encoder_output))     # decoder
        x = x + dropout(mlp(norm(x)))

    With `output_layernorm` self attention has no norm and the output gets one. With
    `apply_residual_connection_post_layernorm` the residual branches start from the norms' outputs.
    With `parallel_attention_mlp`: ``x + dropout(attention(norm(x)) + mlp(norm'(x)))``.

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Sizes of the residual stream and of the MLP.
    num_attention_heads : int
        Query heads of the whole model.
    num_gqa_groups : int, optional
        Key and value heads, default as many as query heads.
    layernorm_epsilon : float
        Epsilon of the norms.
    hidden_dropout, attention_dropout : float
        Dropout of the two branches, and of the softmax output.
    init_method, output_layer_init_method : callable, optional
        Initialize weights in place, default normal(0, 0.023).
    layer_number : int, optional
        1-based.
    kv_channels : int, optional
        Head size, default ``hidden_size // num_attention_heads``.
    self_attn_mask_type, window_size, bottom_right_diagonal
        Mask of self attention, see :class:`DotProductAttention`.
    enc_dec_attn_mask_type, enc_dec_window_size, enc_dec_bottom_right_diagonal
        Mask of cross attention.
    tp_group, tp_size, set_parallel_mode, sequence_parallel
        Tensor parallelism. `sequence_parallel` has no effect with one rank.
    params_dtype : torch.dtype, optional
        Default ``torch.get_default_dtype()``.
    get_rng_state_tracker : callable, optional
        Returns the tracker under which weights and the dropout of attention are drawn.
    fuse_wgrad_accumulation : bool
        Weight gradients go to ``main_grad``; needs `fuse_qkv_params`.
    seq_length, micro_batch_size : int, optional
        With `sequence_parallel`, `seq_length` is checked against the input.
    apply_residual_connection_post_layernorm, output_layernorm, parallel_attention_mlp : bool
        Order of norms and branches, see above. The last excludes the other two, and a decoder.
    layer_type : {"encoder", "decoder"}
        A decoder has cross attention.
    drop_path_rate : float
        Probability to drop the branch of a sample (index of dimension 0), not for cross attention.
    fuse_qkv_params, qkv_weight_interleaved, rotary_pos_interleaved, qk_norm_type, qk_norm_eps,
    qk_norm_before_rope, softmax_type
        See :class:`MultiheadAttention`. ``quantized_model_init`` needs `fuse_qkv_params`.
    zero_centered_gamma : bool
        The weights of the norms are stored minus one and start at 0.
    ub_tp_comm_overlap, ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad,
    ub_bulk_wgrad : bool
        Overlap of communication; each is on only with `ub_tp_comm_overlap`.
    bias : bool
        Whether the linear layers have biases.
    activation, activation_params
        See :class:`LayerNormMLP`.
    normalization : {"LayerNorm", "RMSNorm"}
        Kind of all norms but those of query and key.
    device : torch.device or str
        Of the parameters; "cuda" means the CPU where there is no CUDA.
    attn_input_format : {"sbhd", "bshd", "thd"}
        Format of `hidden_states`.
    name : str, optional
        Prefix of the children's names, for messages and debugging.

    Raises
    ------
    ValueError, TypeError
        Options that exclude each other, unknown names, values of another kind.
    RuntimeError
        Inside ``quantized_model_init`` without `fuse_qkv_params`.
    NotImplementedError
        For an unknown activation.
    """

    def __init__(  # noqa: PLR0913 - public signature
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Callable[[Tensor], Any] | None = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_bottom_right_diagonal: bool | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        params_dtype: torch.dtype | None = None,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        sequence_parallel: bool = False,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        drop_path_rate: float = 0.0,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        ub_tp_comm_overlap: bool = False,
        ub_overlap_ag: bool = True,
        ub_overlap_rs: bool = True,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = True,
        ub_bulk_wgrad: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: dict[str, Any] | None = None,
        normalization: str = "LayerNorm",
        device: torch.device | str = "cuda",
        attn_input_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
    ) -> None:
        super().__init__()
        check_choice(_WHO, "layer_type", layer_type, LayerTypes)
        check_choice(_WHO, "normalization", normalization, ("LayerNorm", "RMSNorm"))
        check_choice(_WHO, "attn_input_format", attn_input_format, QKV_FORMATS)
        if parallel_attention_mlp:
            _refuse_parallel_with(
                layer_type, apply_residual_connection_post_layernorm, output_layernorm
            )
        if fuse_wgrad_accumulation and not fuse_qkv_params:
            raise ValueError(
                "TransformerLayer: fuse_wgrad_accumulation is True with fuse_qkv_params=False; "
                "gradients can be accumulated into one parameter only. Set fuse_qkv_params=True."
            )
        for argument, value in (
            ("self_attn_mask_type", self_attn_mask_type),
            ("enc_dec_attn_mask_type", enc_dec_attn_mask_type),
        ):
            normalize_mask_type(value, _WHO, argument)
        check_window(window_size, _WHO)
        check_window(enc_dec_window_size, _WHO, "enc_dec_window_size")
        check_probability(_WHO, "hidden_dropout", hidden_dropout)
        check_probability(_WHO, "attention_dropout", attention_dropout)
        check_share(_WHO, "drop_path_rate", drop_path_rate)
        check_epsilon(_WHO, "layernorm_epsilon", layernorm_epsilon)
        check_params_dtype(_WHO, "params_dtype", params_dtype)
        check_callables(
            _WHO,
            init_method=init_method,
            output_layer_init_method=output_layer_init_method,
            get_rng_state_tracker=get_rng_state_tracker,
        )
        for argument, number in (
            ("layer_number", layer_number),
            ("seq_length", seq_length),
            ("micro_batch_size", micro_batch_size),
        ):
            if number is not None:
                check_int(_WHO, argument, number)
        self.name = name
        self.layer_type = layer_type
        self.layer_number = layer_number
        self.self_attn_mask_type = self_attn_mask_type
        self.window_size = window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.enc_dec_attn_mask_type = enc_dec_attn_mask_type
        self.enc_dec_window_size = enc_dec_window_size
        self.enc_dec_bottom_right_diagonal = enc_dec_bottom_right_diagonal
        self.apply_residual_connection_post_layernorm = apply_residual_connection_post_layernorm
        self.output_layernorm = output_layernorm
        self.parallel_attention_mlp = parallel_attention_mlp
        self.hidden_dropout = hidden_dropout
        self.attn_input_format = attn_input_format
        self.seq_length = seq_length
        self.tp_group = tp_group
        self.tp_size = tensor_parallel_size(_WHO, tp_size, tp_group)
        check_int(_WHO, "ffn_hidden_size", ffn_hidden_size)
        check_attention_sizes(
            _WHO, hidden_size, num_attention_heads, num_gqa_groups, kv_channels, self.tp_size
        )
        check_placement(_WHO, device, fuse_qkv_params)
        self.hidden_size = hidden_size
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0.0 else None

        params_dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        init_method = default_init if init_method is None else init_method
        out_init = default_init if output_layer_init_method is None else output_layer_init_method
        common = {
            "tp_group": tp_group,
            "tp_size": self.tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "sequence_parallel": self.sequence_parallel,
            "params_dtype": params_dtype,
            "init_method": init_method,
            "output_layer_init_method": out_init,
            "set_parallel_mode": set_parallel_mode,
            "zero_centered_gamma": zero_centered_gamma,
            "seq_length": seq_length,
            "micro_batch_size": micro_batch_size,
            "bias": bias,
            "normalization": normalization,
            "device": device,
            "return_layernorm_output": apply_residual_connection_post_layernorm,
            "ub_overlap_ag": ub_tp_comm_overlap and ub_overlap_ag,
            "ub_overlap_rs": ub_tp_comm_overlap and ub_overlap_rs,
            "ub_overlap_rs_dgrad": ub_tp_comm_overlap and ub_overlap_rs_dgrad,
            "ub_bulk_dgrad": ub_tp_comm_overlap and ub_bulk_dgrad,
            "ub_bulk_wgrad": ub_tp_comm_overlap and ub_bulk_wgrad,
        }
        attention = {
            **common,
            "attention_dropout": attention_dropout,
            "layernorm_epsilon": layernorm_epsilon,
            "layer_number": layer_number,
            "num_gqa_groups": num_gqa_groups,
            "fuse_qkv_params": fuse_qkv_params,
            "qkv_weight_interleaved": qkv_weight_interleaved,
            "rotary_pos_interleaved": rotary_pos_interleaved,
            "qkv_format": attn_input_format,
            "qk_norm_type": qk_norm_type,
            "qk_norm_eps": qk_norm_eps,
            "qk_norm_before_rope": qk_norm_before_rope,
            "softmax_type": softmax_type,
        }
        sizes = (hidden_size, num_attention_heads, kv_channels)
        # The biases of the output projections are added by their GEMMs, before dropout.
        self._accepted_calls: set[Any] = set()
        self.self_attention = MultiheadAttention(
            *sizes,
            **attention,
            attention_type="self",
            attn_mask_type=self_attn_mask_type,
            window_size=window_size,
            bottom_right_diagonal=bottom_right_diagonal,
            input_layernorm=not output_layernorm,
            name=_child(name, "self_attention"),
        )
        if layer_type == "decoder":
            self.inter_attention = MultiheadAttention(
                *sizes,
                **attention,
                attention_type="cross",
                attn_mask_type=enc_dec_attn_mask_type,
                window_size=enc_dec_window_size,
                bottom_right_diagonal=enc_dec_bottom_right_diagonal,
                input_layernorm=True,
                name=_child(name, "inter_attention"),
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            **common,
            eps=layernorm_epsilon,
            activation=activation,
            activation_params=activation_params,
            name=_child(name, "layernorm_mlp"),
        )
        self.layernorm = None
        if output_layernorm:
            norm = LayerNorm if normalization == "LayerNorm" else RMSNorm
            self.layernorm = norm(
                hidden_size,
                eps=layernorm_epsilon,
                sequence_parallel=self.sequence_parallel,
                dtype=params_dtype,
                zero_centered_gamma=zero_centered_gamma,
                device=device,
            )

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Set the tensor-parallel group of every descendant that takes one."""
        if tp_group is not None:
            group_size(f"{_WHO}.set_tensor_parallel_group", "tp_group", tp_group)
        self.tp_group = tp_group
        for child in _descendants_with(self, "set_tensor_parallel_group"):
            child.set_tensor_parallel_group(tp_group)

    def set_context_parallel_group(
        self,
        cp_group: Any,
        cp_global_ranks: Sequence[int] | None,
        cp_stream: Any,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Set the context-parallel group of every descendant that takes one."""
        for child in _descendants_with(self, "set_context_parallel_group"):
            child.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def forward(  # noqa: C901, PLR0913 - public signature, one branch per optional argument
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        self_attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        encoder_output: Tensor | None = None,
        enc_dec_attn_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
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
    ) -> Tensor:
        """Run the layer.

        Parameters
        ----------
        hidden_states : torch.Tensor
            ``[s, b, hidden]``, ``[b, s, hidden]`` or ``[t, hidden]``, by `attn_input_format`. Under
            ``torch.autocast`` it is cast to the autocast dtype first.
        attention_mask, enc_dec_attn_mask : torch.Tensor, optional
            Boolean, **True = masked out**; read for padding and arbitrary mask types.
        self_attn_mask_type, window_size, bottom_right_diagonal, enc_dec_attn_mask_type,
        enc_dec_window_size, enc_dec_bottom_right_diagonal : optional
            Override the constructor's for this call.
        encoder_output : torch.Tensor, optional
            Output of the encoder, for a decoder layer.
        cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded, max_seqlen_q,
        max_seqlen_kv : optional
            Lengths. Self attention uses those of the query for both sides.

        The remaining arguments are those of :meth:`MultiheadAttention.forward`.

        Returns
        -------
        torch.Tensor
            Same shape as `hidden_states`.
        """
        is_traced = torch.compiler.is_compiling()  # then guards do what is remembered here
        try:  # a call like one that was accepted needs no second look
            call = (
                hidden_states.shape,
                hidden_states.dtype,
                hidden_states.device,
                self_attn_mask_type,
                window_size,
                enc_dec_attn_mask_type,
                enc_dec_window_size,
                self.attn_input_format,
            )
            is_known = not is_traced and call in self._accepted_calls
        except (AttributeError, TypeError):  # no tensor, or a window given as a list
            call, is_known = None, False
        has_tensors = not (
            attention_mask is None and encoder_output is None and enc_dec_attn_mask is None
        )
        if not is_known or has_tensors or self.layer_type == "decoder":
            self._check_call(
                hidden_states,
                {"attention_mask": attention_mask, "enc_dec_attn_mask": enc_dec_attn_mask},
                encoder_output,
                {
                    "self_attn_mask_type": self_attn_mask_type,
                    "enc_dec_attn_mask_type": enc_dec_attn_mask_type,
                },
                {"window_size": window_size, "enc_dec_window_size": enc_dec_window_size},
            )
            if call is not None and not is_traced:
                remember(self._accepted_calls, call)
        mask_type = self.self_attn_mask_type if self_attn_mask_type is None else self_attn_mask_type
        device_type = hidden_states.device.type
        if torch.is_autocast_enabled(device_type):
            hidden_states = hidden_states.to(torch.get_autocast_dtype(device_type))
        if self.sequence_parallel and self.seq_length is not None:
            self._check_local_length(hidden_states, self.seq_length)
        # What is at its default is left out: a call with twenty keywords costs 2 us more.
        shared: dict[str, Any] = {}
        if is_first_microbatch is not None:
            shared["is_first_microbatch"] = is_first_microbatch
        if checkpoint_core_attention:
            shared["checkpoint_core_attention"] = checkpoint_core_attention
        if inference_params is not None:
            shared["inference_params"] = inference_params
        if core_attention_bias_type != "no_bias" or core_attention_bias is not None:
            shared["core_attention_bias_type"] = core_attention_bias_type
            shared["core_attention_bias"] = core_attention_bias
        if alibi_slopes is not None:
            shared["alibi_slopes"] = alibi_slopes
        if fast_zero_fill is not True or pad_between_seqs is not None:
            shared["fast_zero_fill"] = fast_zero_fill
            shared["pad_between_seqs"] = pad_between_seqs
        own: dict[str, Any] = {
            "attn_mask_type": mask_type,
            "window_size": self.window_size if window_size is None else window_size,
            "bottom_right_diagonal": (
                self.bottom_right_diagonal
                if bottom_right_diagonal is None
                else bottom_right_diagonal
            ),
        }
        if rotary_pos_emb is not None:
            own["rotary_pos_emb"] = rotary_pos_emb
        if cu_seqlens_q is not None:
            own["cu_seqlens_q"] = own["cu_seqlens_kv"] = cu_seqlens_q
        if cu_seqlens_q_padded is not None:
            own["cu_seqlens_q_padded"] = own["cu_seqlens_kv_padded"] = cu_seqlens_q_padded
        if max_seqlen_q is not None:
            own["max_seqlen_q"] = own["max_seqlen_kv"] = max_seqlen_q
        children: dict[str, Any] = self._modules  # nn.Module.__getattr__ is slow
        attended = children["self_attention"](hidden_states, attention_mask, **own, **shared)
        if self.parallel_attention_mlp:
            transformed = children["layernorm_mlp"](hidden_states, is_first_microbatch)
            return self._join(attended + transformed, hidden_states, True)
        residual = hidden_states
        if self.apply_residual_connection_post_layernorm and not self.output_layernorm:
            attended, residual = attended
        hidden_states = self._join(attended, residual, True)
        if self.layer_type == "decoder":
            hidden_states = self._cross_attend(
                hidden_states,
                encoder_output,
                enc_dec_attn_mask,
                attn_mask_type=enc_dec_attn_mask_type,
                window_size=enc_dec_window_size,
                bottom_right_diagonal=enc_dec_bottom_right_diagonal,
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_kv=cu_seqlens_kv,
                cu_seqlens_q_padded=cu_seqlens_q_padded,
                cu_seqlens_kv_padded=cu_seqlens_kv_padded,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_kv=max_seqlen_kv,
                **shared,
            )
        transformed = children["layernorm_mlp"](hidden_states, is_first_microbatch)
        residual = hidden_states
        if self.apply_residual_connection_post_layernorm:
            transformed, residual = transformed
        output = self._join(transformed, residual, True)
        return children["layernorm"](output) if self.output_layernorm else output

    def _check_call(
        self,
        hidden_states: Any,
        masks: dict[str, Any],
        encoder_output: Any,
        mask_types: dict[str, str | None],
        windows: dict[str, tuple[int, int] | None],
    ) -> None:
        """Refuse what is wrong before a part of the layer records anything of it."""
        who = "TransformerLayer.forward"
        hidden, qkv_format = self.hidden_size, self.attn_input_format
        check_hidden(who, "hidden_states", hidden_states, hidden, qkv_format)
        if self.layer_type == "decoder":
            if encoder_output is None:
                raise ValueError(
                    f"{who}: encoder_output is None; a decoder makes the keys and values of its "
                    "cross attention of it."
                )
            check_hidden(who, "encoder_output", encoder_output, hidden, qkv_format)
        for name, mask in masks.items():
            if mask is not None:
                _check_mask(name, mask)
        for name, mask_type in mask_types.items():
            if mask_type is not None:
                normalize_mask_type(mask_type, who, name)
        for name, window in windows.items():
            check_window(window, who, name)

    def _cross_attend(
        self,
        hidden_states: Tensor,
        encoder_output: Tensor | None,
        mask: Tensor | tuple[Tensor, Tensor] | None,
        **options: Any,
    ) -> Tensor:
        for argument in ("attn_mask_type", "window_size", "bottom_right_diagonal"):
            if options[argument] is None:
                options[argument] = getattr(self, f"enc_dec_{argument}")
        attended = self.inter_attention(hidden_states, mask, encoder_output, **options)
        residual = hidden_states
        if self.apply_residual_connection_post_layernorm:
            attended, residual = attended
        return self._join(attended, residual, False)

    def _join(self, branch: Tensor, residual: Tensor, may_drop_path: bool) -> Tensor:
        """residual + drop_path(dropout(branch))."""
        if self.hidden_dropout > 0.0 and self.training:
            branch = F.dropout(branch, self.hidden_dropout)
        if may_drop_path and self.drop_path is not None:
            branch = self.drop_path(branch)
        return residual + branch

    def _check_local_length(self, hidden_states: Tensor, seq_length: int) -> None:
        expected = seq_length // self.tp_size
        if hidden_states.shape[0] != expected:
            raise ValueError(
                f"TransformerLayer.forward: hidden_states has shape {tuple(hidden_states.shape)}; "
                f"with sequence_parallel and seq_length={seq_length} each of {self.tp_size} "
                f"ranks holds {expected} positions."
            )


def _child(name: str | None, child: str) -> str | None:
    return None if name is None else f"{name}.{child}"


def _descendants_with(module: torch.nn.Module, method: str) -> list[Any]:
    return [child for child in module.modules() if child is not module and hasattr(child, method)]


def _refuse_parallel_with(layer_type: str, residual_post_norm: bool, output_norm: bool) -> None:
    for argument, value, needed in (
        ("layer_type", layer_type, "encoder"),
        ("apply_residual_connection_post_layernorm", residual_post_norm, False),
        ("output_layernorm", output_norm, False),
    ):
        if value != needed:
            raise ValueError(
                f"TransformerLayer: {argument} is {value!r} with parallel_attention_mlp=True; it "
                f"must be {needed!r}, attention and MLP read the same input there."
            )


def _check_mask(argument: str, mask: Tensor | tuple[Tensor, ...]) -> None:
    """Masks are boolean; for a list the message says which entries are not."""
    masks = mask if isinstance(mask, (tuple, list)) else (mask,)
    wrong = [i for i, x in enumerate(masks) if not isinstance(x, Tensor) or x.dtype != torch.bool]
    if wrong:
        received = [str(getattr(masks[i], "dtype", type(masks[i]).__name__)) for i in wrong]
        raise TypeError(
            f"TransformerLayer.forward: {argument} has {', '.join(received)} at {wrong}; masks "
            "must be torch.bool, True = masked out."
        )
