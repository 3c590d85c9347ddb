# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks of attention inputs. All of them need shapes and dtypes only, so they run once per call
signature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..constants import AttnBiasTypes
from .problem import QKV_FORMATS

WHO = "DotProductAttention.forward"


def split_packed(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor | None,
    qkv_layer: Tensor | None,
    kv_layer: Tensor | None,
    interleave_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q, k, v in one tensor ``[.., 3, h, d]`` / ``[.., h, 3, d]``, or of k, v in one with
    2 instead of 3.
    """
    if qkv_layer is not None:
        if not (query is None and key is None and value is None and kv_layer is None):
            raise ValueError(
                f"{WHO}: qkv_layer is given together with other inputs; it already holds query, "
                "key and value. Pass it alone."
            )
        packed, name, parts = qkv_layer, "qkv_layer", 3
    else:
        if query is None or key is not None or value is not None:
            raise ValueError(
                f"{WHO}: kv_layer is given without query_layer or together with key_layer or "
                "value_layer; it holds key and value. Pass query_layer and kv_layer."
            )
        packed, name, parts = kv_layer, "kv_layer", 2
    shape = tuple(packed.shape)
    if interleave_dim not in (-3, -2):
        raise ValueError(f"{WHO}: qkv_interleave_dim is {interleave_dim}; it must be -3 or -2.")
    if len(shape) not in (4, 5) or shape[interleave_dim] != parts:
        raise ValueError(
            f"{WHO}: {name} has shape {shape}; it must have 5 dimensions (4 for thd) and size "
            f"{parts} in dimension {interleave_dim}."
        )
    if packed.stride(-1) != 1:
        raise ValueError(
            f"{WHO}: {name} has stride {packed.stride(-1)} in its last dimension; it must be 1. "
            "Call contiguous()."
        )
    views = packed.unbind(interleave_dim)
    return views if parts == 3 else (query, *views)


def check_qkv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    qkv_format: str,
    heads: int,
    groups: int,
    dims: tuple[int, int],
) -> None:
    """Ranks, sizes, dtypes and devices of the three inputs."""
    if qkv_format not in QKV_FORMATS:
        raise ValueError(
            f"{WHO}: qkv_format is {qkv_format!r}; it must be one of {', '.join(QKV_FORMATS)}."
        )
    named = {"query_layer": query, "key_layer": key, "value_layer": value}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{WHO}: {name} is a {type(x).__name__}; it must be a torch.Tensor.")
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise TypeError(
                f"{WHO}: {name} has dtype {x.dtype}; it must be FP16, BF16, FP32 or FP64."
            )
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"{WHO}: query_layer, key_layer and value_layer have dtypes {query.dtype}, "
            f"{key.dtype}, {value.dtype}; they must be the same."
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            f"{WHO}: query_layer, key_layer and value_layer are on {query.device}, {key.device}, "
            f"{value.device}; they must be on one device."
        )
    rank = 3 if qkv_format == "thd" else 4
    expected = {
        "query_layer": (heads, dims[0]),
        "key_layer": (groups, dims[0]),
        "value_layer": (groups, dims[1]),
    }
    for name, x in named.items():
        shape = tuple(x.shape)
        if len(shape) != rank or shape[-2:] != expected[name]:
            raise ValueError(
                f"{WHO}: {name} has shape {shape}; {qkv_format} needs {rank} dimensions ending in "
                f"{expected[name]} (heads of this rank, head size)."
            )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"{WHO}: key_layer has shape {tuple(key.shape)} and value_layer {tuple(value.shape)}; "
            "all but the head size must agree."
        )
    batch_dim = {"sbhd": 1, "bshd": 0}.get(qkv_format)
    if batch_dim is not None and query.shape[batch_dim] != key.shape[batch_dim]:
        raise ValueError(
            f"{WHO}: query_layer has batch size {query.shape[batch_dim]} and key_layer "
            f"{key.shape[batch_dim]}; they must agree."
        )


def check_cu_seqlens(named: dict[str, Tensor | None], sequences: int | None) -> None:
    """Cumulative lengths: int32 vectors of one size, ``sequences + 1`` when that is known."""
    size = None if sequences is None else sequences + 1
    for name, x in named.items():
        if x is None:
            continue
        if not isinstance(x, Tensor) or x.dtype != torch.int32:
            received = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"{WHO}: {name} is {received}; it must be a torch.int32 tensor of cumulative "
                "lengths."
            )
        size = x.shape[0] if size is None and x.dim() == 1 else size
        if x.dim() != 1 or x.shape[0] != size or size < 2:
            raise ValueError(
                f"{WHO}: {name} has shape {tuple(x.shape)}; cumulative lengths of all sides are "
                f"vectors of one size, sequences + 1{'' if size is None else f' = {size}'}."
            )


def check_packed(mask_name: str, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None) -> None:
    """What thd needs."""
    if "padding" not in mask_name:
        raise ValueError(
            f"{WHO}: attn_mask_type is {mask_name!r}; thd needs a padding type, for example "
            "padding_causal for causal."
        )
    if cu_seqlens_q is None or cu_seqlens_kv is None:
        raise ValueError(f"{WHO}: cu_seqlens_q or cu_seqlens_kv is None; thd needs both.")


def check_bias(
    kind: str, bias: Tensor | None, slopes: Tensor | None, heads: int, device: torch.device
) -> None:
    """Bias type against the tensors given for it. (Its shape is checked where the sequence sizes
    are known.)
    """
    if kind not in AttnBiasTypes:
        raise ValueError(
            f"{WHO}: core_attention_bias_type is {kind!r}; it must be one of "
            f"{', '.join(AttnBiasTypes)}."
        )
    takes_tensor = kind in ("pre_scale_bias", "post_scale_bias")
    if takes_tensor != (bias is not None):
        raise ValueError(
            f"{WHO}: core_attention_bias is {'None' if bias is None else 'given'} with "
            f"core_attention_bias_type={kind!r}; pre_scale_bias and post_scale_bias need it, the "
            "other types do not take it."
        )
    if bias is not None and (not bias.is_floating_point() or bias.device != device):
        raise TypeError(
            f"{WHO}: core_attention_bias has dtype {bias.dtype} on {bias.device}; it must be "
            f"floating point on {device}."
        )
    if slopes is not None:
        if kind != "alibi":
            raise ValueError(
                f"{WHO}: alibi_slopes is given with core_attention_bias_type={kind!r}; slopes "
                "belong to 'alibi'."
            )
        if slopes.dim() not in (1, 2) or slopes.shape[-1] != heads:
            raise ValueError(
                f"{WHO}: alibi_slopes has shape {tuple(slopes.shape)}; it must be ({heads},) or "
                f"(b, {heads})."
            )
